// Finding tensors by name, node or operator: how many there are, and one after the other.

const search = { hits: [], at: 0, windows: null };

function find(text) {
  shared.found = text.trim().toLowerCase();
  if (shared.found !== "" && search.windows === null) search.windows = maps.map((map) => map.window);
  search.hits = [];
  for (const map of maps) {
    for (const row of map.arena.rows) {
      row.hit = shared.found !== "" && row.search.includes(shared.found);
      if (row.hit) search.hits.push({ map, row });
    }
  }
  search.hits.sort((a, b) => maps.indexOf(a.map) - maps.indexOf(b.map) || a.row.first - b.row.first || a.row.offset - b.row.offset);
  if (shared.found === "") restore();
  go(0);
}

// Shows again what was in sight before the search.
function restore() {
  if (search.windows !== null) maps.forEach((map, i) => { map.window = search.windows[i]; });
  search.windows = null;
}

// Goes to the hit of that number, counted from 0 and around.
function go(number) {
  const { hits } = search, isAny = hits.length > 0;
  search.at = isAny ? (number + hits.length) % hits.length : 0;
  element("count").value = shared.found === "" ? "" : isAny ? `${counted(search.at + 1)} of ${counted(hits.length)}` : "no match";
  for (const id of ["previous", "next"]) element(id).hidden = !isAny;
  shared.current = isAny ? hits[search.at].row : null;
  maps.forEach((map) => map.redraw());
  if (!isAny) return tell(null, null, null);
  const { map, row } = hits[search.at];
  map.show(row);
  for (const other of maps) if (other.plan !== map.plan) other.showNamed(row.name);
  const box = map.box(row), around = map.canvas.getBoundingClientRect(), seen = map.inSight(box);
  return tell(map, row, { clientX: around.left + seen.right, clientY: around.top + seen.low - 18 });
}

function listenToFind() {
  const field = element("find");
  field.addEventListener("input", () => find(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(search.at + (event.shiftKey ? -1 : 1));
    if (event.key === "Escape") {
      field.value = "";
      find("");
    }
    if (["Enter", "Escape"].includes(event.key)) event.preventDefault();
  });
  element("next").addEventListener("click", () => go(search.at + 1));
  element("previous").addEventListener("click", () => go(search.at - 1));
}
