// The page around the maps: what it is built of, and its controls.

const data = JSON.parse(document.getElementById("data").textContent);
const shared = { names: data.names, ownScales: data.ownScales, found: "", current: null, way: 0, coloring: data.colorings[0], only: null };
const maps = [];
const MOST_ENTRIES = 13;
const MOST_CAPACITY = 1.6;  // how much larger than an arena its capacity may be that a map still shows it

function heading(plan, arena) {
  const gap = arena.gap ? `gap ${readable(arena.gap)} (${((100 * arena.gap) / arena.size).toFixed(1)}%)` : "no gap";
  const said = plan.said ? `${plan.said}: ` : "", name = plan.arenas.length > 1 ? ` ${arena.name}` : "";
  const capacity = arena.capacity === null ? "" : ` of ${readable(arena.capacity)}`;
  return `${said}arena${name} ${readable(arena.size)}${capacity}, peak ${readable(arena.peak)}${arena.peak ? ` at step ${counted(arena.peakStep)}` : ""}, ${gap}`;
}

function topOf(arena) {
  const most = Math.max(1, arena.size, arena.peak);
  return arena.capacity !== null && arena.capacity <= most * MOST_CAPACITY ? Math.max(most, arena.capacity) : most;
}

// The highest address that a map of each plan shows of the arenas in one row: the same for all plans, or its own.
function tops(row) {
  const own = data.plans.map((plan) => (plan.arenas[row] ? topOf(plan.arenas[row]) : 1));
  return shared.ownScales ? own : own.map(() => Math.max(1, ...own));
}

function build() {
  data.plans.forEach((plan, at) => {
    const column = make("div", "", element("plans"));
    column.className = "plan";
    plan.arenas.forEach((arena, i) => {
      prepare(arena.rows);
      const part = make("div", "", column);
      part.className = "arena";
      const title = make("h2", heading(plan, arena), part);
      title.hidden = data.plans.length === 1 && plan.arenas.length === 1 && arena.gap === 0;  // the headline says it
      const canvas = make("canvas", "", make("div", "", part));
      canvas.tabIndex = 0;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", heading(plan, arena));
      maps.push(new ArenaMap(canvas, plan, arena, tops(i)[at], shared));
    });
  });
}

// Offers to draw two plans at one scale, or each at its own.
function offerScales() {
  const scale = element("scale");
  scale.parentElement.hidden = data.plans.length < 2;
  scale.checked = !shared.ownScales;
  scale.addEventListener("change", () => {
    shared.ownScales = !scale.checked;
    for (const map of maps) {
      const at = data.plans.indexOf(map.plan);
      map.top = tops(map.plan.arenas.indexOf(map.arena))[at];
      map.showAll();
    }
  });
}

// Gives each row the text in which it is found, and the row that holds its bytes: itself, where these are parts with lives of their own.
function prepare(rows) {
  const owners = new Map(rows.filter((row) => row.owner === null && !row.whole).map((row) => [row.name, row]));
  for (const row of rows) {
    row.search = `${row.name}\n${row.node ?? ""}\n${row.operator ?? ""}\n${row.layer ?? ""}`.toLowerCase();
    row.holder = owners.get(row.owner) ?? row;
  }
}

// Offers what tensors can be coloured by.
function offerColors() {
  data.colorings.forEach((coloring, i) => {
    const label = make("label", "", element("colors")), button = make("input", "", label);
    Object.assign(button, { type: "radio", name: "coloring", value: coloring.name, checked: i === 0 });
    label.append(coloring.name);
    button.addEventListener("change", () => colorBy(i));
  });
}

function colorBy(number) {
  Object.assign(shared, { way: number, coloring: data.colorings[number], only: null });
  maps.forEach((map) => map.paint());
  legend();
}

function legend() {
  const { groups, ramp } = shared.coloring, parent = element("legend");
  parent.replaceChildren();
  if (ramp && groups.length > MOST_ENTRIES) gradient(groups, parent);
  else groups.forEach((group, i) => entry(group, i, parent));
  if (!maps.some((map) => map.arena.gap)) return;
  const gap = make("span", "", parent);
  make("i", "", gap).className = "gap";
  gap.append("gap above the peak");
}

// An entry of the legend; pressed, its tensors alone keep their colour.
function entry(group, number, parent) {
  const button = make("button", "", parent);
  make("i", "", button).style.background = group.color;
  button.append(group.label);
  button.title = "show these alone";
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    shared.only = shared.only === number ? null : number;
    for (const other of parent.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button && shared.only !== null));
    maps.forEach((map) => map.redraw());
  });
}

function gradient(groups, parent) {
  const whole = make("span", groups[0].label, parent), bar = make("i", "", whole);
  bar.className = "ramp";
  bar.style.background = `linear-gradient(to right, ${groups.map((group) => group.color).join(", ")})`;
  whole.append(`${groups[groups.length - 1].label} (${counted(groups.length)} layers)`);
}

function selectPeaks() {
  const plan = data.plans[data.plans.length - 1];
  const highest = plan.arenas.reduce((best, arena) => (best === null || arena.peak > best.peak ? arena : best), null);
  if (highest) select(plan, highest.peakStep);
}

// Goes `by` steps on from the selected one, or moves what is in sight where none is selected.
function move(by) {
  const map = maps.find((one) => one.selected !== null);
  if (map === undefined) return maps.forEach((one) => one.pan(-80 * by, 0));
  return select(map.plan, Math.min(Math.max(map.selected + by, map.plan.start), map.plan.steps - 1));
}

const each = (act) => () => maps.forEach(act);
const ACTIONS = {
  "+": each((map) => map.zoom(0.8)),
  "-": each((map) => map.zoom(1.25)),
  0: each((map) => map.showAll()),
  p: selectPeaks,
  "/": () => element("find").focus(),
  Escape: () => select(data.plans[0], null),
  ArrowLeft: () => move(-1),
  ArrowRight: () => move(1),
  ArrowUp: each((map) => map.pan(0, 80)),
  ArrowDown: each((map) => map.pan(0, -80)),
};

function control() {
  element("names").checked = shared.names;
  element("names").addEventListener("change", (event) => {
    shared.names = event.target.checked;
    maps.forEach((map) => map.redraw());
  });
  listenToFind();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readTheme();
    maps.forEach((map) => map.paint());
  });
  for (const [id, key] of [["in", "+"], ["out", "-"], ["all", "0"], ["peak", "p"]]) element(id).addEventListener("click", ACTIONS[key]);
  document.addEventListener("keydown", (event) => {
    if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || !ACTIONS[event.key]) return;
    event.preventDefault();
    ACTIONS[event.key]();
  });
}

build();
offerColors();
offerScales();
legend();
maps.forEach(listen);
control();
