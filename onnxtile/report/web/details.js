// What the page says of a tensor under the pointer, and of the step that is selected.

const MOST_ROWS = 500;

// Appends a name that may be broken into lines at its slashes.
function path(name, parent) {
  for (const part of name.split(/(?<=\/)/)) parent.append(part, document.createElement("wbr"));
}

function nodeAt(plan, step) {
  return plan.runs[step] ? `${counted(step)} (${plan.runs[step]})` : counted(step);
}

function facts(plan, row) {
  return [
    row.operator !== null && ["operator", row.operator],
    row.node !== null && ["node", row.node],
    row.layer && ["layer", row.layer],
    row.shape !== null && ["type", `${row.dtype} ${row.shape.length ? row.shape.join("×") : "scalar"}`.trim()],
    row.whole && ["part of", `${counted(row.whole[1])} bytes at ${counted(row.whole[0])}`],
    ["size", `${counted(row.size)} bytes${row.size >= 1024 ? ` (${readable(row.size)})` : ""}`],
    ["offset", `${counted(row.offset)} bytes`],
    ["first step", nodeAt(plan, row.first)],
    ["last step", nodeAt(plan, row.last)],
    row.owner !== null && ["alias of", row.owner],
    ["kind", row.kind],
    row.rule && ["rule", row.rule],
  ].filter(Boolean);
}

// Shows what is known of `row` near a point of the window; null hides it.
function tell(map, row, at) {
  const tip = element("tip");
  tip.hidden = row === null;
  if (row === null) return;
  tip.replaceChildren();
  const name = make("b", "", tip);
  make("i", "", name).style.background = shared.coloring.groups[row.groups[shared.way]].color;
  name.append(row.name);
  factTable(facts(map.plan, row), tip);
  placeTip(tip, at);
}

// Selects a step of a plan in all of its arenas, and lists what is live there; null selects none.
function select(plan, step) {
  for (const map of maps) {
    map.selected = map.plan === plan ? step : null;
    if (map.selected !== null) map.reveal(step);
    map.redraw();
  }
  const aside = element("step");
  aside.hidden = step === null;
  aside.replaceChildren();
  if (step === null) return;
  const node = plan.runs[step] ? `: ${plan.runs[step]}` : "";
  make("h2", `${plan.said ? `${plan.said}, ` : ""}step ${counted(step)}${node}`, aside);
  for (const arena of plan.arenas) list(arena, step, aside, plan.arenas.length > 1);
}

function list(arena, step, parent, several) {
  const live = arena.rows.filter((row) => row.owner === null && row.first <= step && step <= row.last).sort((a, b) => b.size - a.size);
  const used = arena.live.findLast(([from]) => from <= step)[1];
  const buffers = new Set(live.map((row) => row.name)).size;
  make("h3", `${several ? `${arena.name}: ` : ""}${counted(buffers)} live ${buffers === 1 ? "buffer" : "buffers"}, ${readable(used)}`, parent);
  const table = make("table", "", parent), head = make("tr", "", table);
  for (const name of ["buffer", "bytes", "offset"]) make("th", name, head);
  for (const row of live.slice(0, MOST_ROWS)) {
    const line = make("tr", "", table);
    const inside = arena.rows.filter((other) => other.owner === row.name && other.first <= step && step <= other.last && other.offset < row.offset + row.size && row.offset < other.offset + other.size);
    const name = make("td", "", line);
    path(row.name, name);
    if (inside.length) path(`alias${inside.length > 1 ? "es" : ""}: ${inside.map((other) => other.name).join(", ")}`, make("small", "", name));
    make("td", counted(row.size), line);
    make("td", counted(row.offset), line);
  }
  if (live.length > MOST_ROWS) make("p", `and ${counted(live.length - MOST_ROWS)} smaller ones`, parent);
}
