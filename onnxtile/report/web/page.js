// The page around the maps: controls, what the pointer does, what is told of a tensor, and what is live at a step.

const data = JSON.parse(document.getElementById("data").textContent);
const shared = { names: data.names, found: "" };
const maps = [];
const MOST_ROWS = 500;
const element = (id) => document.getElementById(id);

function make(tag, text, parent) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function heading(plan, arena) {
  const gap = arena.gap ? `gap ${readable(arena.gap)} (${((100 * arena.gap) / arena.size).toFixed(1)}%)` : "no gap";
  const said = plan.said ? `${plan.said}: ` : "", name = plan.arenas.length > 1 ? ` ${arena.name}` : "";
  return `${said}arena${name} ${readable(arena.size)}, peak ${readable(arena.peak)}${arena.peak ? ` at step ${arena.peakStep.toLocaleString("en")}` : ""}, ${gap}`;
}

function build() {
  const rows = Math.max(...data.plans.map((plan) => plan.arenas.length));
  const tops = Array.from({ length: rows }, (_, i) => Math.max(1, ...data.plans.map((plan) => (plan.arenas[i] ? Math.max(plan.arenas[i].size, plan.arenas[i].peak) : 1))));
  for (const plan of data.plans) {
    const column = make("div", "", element("plans"));
    column.className = "plan";
    plan.arenas.forEach((arena, i) => {
      for (const row of arena.rows) row.search = `${row.name}\n${row.node ?? ""}`.toLowerCase();
      const part = make("div", "", column);
      part.className = "arena";
      make("h2", heading(plan, arena), part);
      const canvas = make("canvas", "", make("div", "", part));
      canvas.tabIndex = 0;
      canvas.setAttribute("aria-label", heading(plan, arena));
      maps.push(new ArenaMap(canvas, plan, arena, tops[i], shared));
    });
  }
  legend();
}

function legend() {
  const kinds = new Map(data.plans.flatMap((plan) => plan.kinds.map((kind) => [kind.name, kind.color])));
  for (const [name, color] of kinds) {
    const entry = make("span", "", element("legend"));
    make("i", "", entry).style.background = color;
    entry.append(name);
  }
  for (const [name, text] of [["peak", "peak step"], ["gap", "gap above the peak"]]) {
    if (name === "gap" && !maps.some((map) => map.arena.gap)) continue;
    const entry = make("span", "", element("legend"));
    make("i", "", entry).className = name;
    entry.append(text);
  }
}

function nodeAt(plan, step) {
  return plan.runs[step] ? `${step.toLocaleString("en")} (${plan.runs[step]})` : step.toLocaleString("en");
}

function facts(plan, row) {
  const end = row.offset + row.size;
  return [
    row.node !== null && ["node", row.node],
    row.shape !== null && ["shape", `${row.dtype ?? ""} ${row.shape.length ? row.shape.join("×") : "scalar"}`.trim()],
    ["bytes", `${row.size.toLocaleString("en")}${row.size >= 1024 ? ` (${readable(row.size)})` : ""}`],
    ["address", `${row.offset.toLocaleString("en")} to ${end.toLocaleString("en")}`],
    ["life", `step ${nodeAt(plan, row.first)} to ${nodeAt(plan, row.last)}`],
    ["kind", row.owner === null ? row.kind : `${row.kind}, inside ${row.owner}`],
  ].filter(Boolean);
}

function tell(map, row, event) {
  const tip = element("tip");
  tip.hidden = row === null;
  if (row === null) return;
  tip.replaceChildren();
  make("b", row.name, tip);
  for (const [key, value] of facts(map.plan, row)) make("div", `${key}: ${value}`, tip);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18)}px`;
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
  make("h2", `${plan.said ? `${plan.said}, ` : ""}step ${nodeAt(plan, step)}`, aside);
  for (const arena of plan.arenas) list(arena, step, aside, plan.arenas.length > 1);
}

function list(arena, step, parent, several) {
  const live = arena.rows.filter((row) => row.owner === null && row.first <= step && step <= row.last).sort((a, b) => b.size - a.size);
  const used = arena.live.findLast(([from]) => from <= step)[1];
  make("h3", `${several ? `${arena.name}: ` : ""}${live.length.toLocaleString("en")} ${live.length === 1 ? "buffer" : "buffers"} live, ${readable(used)}`, parent);
  const table = make("table", "", parent), head = make("tr", "", table);
  for (const name of ["buffer", "bytes", "offset"]) make("th", name, head);
  for (const row of live.slice(0, MOST_ROWS)) {
    const line = make("tr", "", table);
    const inside = arena.rows.filter((other) => other.owner === row.name && other.first <= step && step <= other.last);
    const name = make("td", row.name, line);
    if (inside.length) make("small", ` with ${inside.map((other) => other.name).join(", ")}`, name);
    make("td", row.size.toLocaleString("en"), line);
    make("td", row.offset.toLocaleString("en"), line);
  }
  if (live.length > MOST_ROWS) make("p", `and ${live.length - MOST_ROWS} smaller ones`, parent);
}

function point(map, event) {
  const box = map.canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function listen(map) {
  const { canvas } = map;
  let from = null, moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    from = { x: event.clientX, y: event.clientY };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return hover(map, event);
    const dx = event.clientX - from.x, dy = event.clientY - from.y;
    if (!moved && Math.hypot(dx, dy) < 4) return undefined;
    moved = true;
    canvas.classList.add("moving");
    tell(map, null, event);
    map.pan(dx, dy);
    from = { x: event.clientX, y: event.clientY };
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (from !== null && !moved) {
      const step = map.stepAt(point(map, event).x);
      select(map.plan, step === map.selected ? null : step);
    }
    from = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("pointercancel", () => { from = null; });
  canvas.addEventListener("pointerleave", (event) => {
    map.hovered = null;
    map.redraw();
    tell(map, null, event);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const by = event.deltaY || event.deltaX;  // with shift, some browsers turn the wheel sideways
    map.zoom(Math.exp(Math.sign(by) * Math.min(Math.abs(by), 120) / 500), point(map, event), !event.altKey, !event.shiftKey);
  }, { passive: false });
  canvas.addEventListener("dblclick", () => map.showAll());
}

function hover(map, event) {
  const { x, y } = point(map, event), row = map.rowAt(x, y);
  if (row !== map.hovered) {
    map.hovered = row;
    map.redraw();
  }
  tell(map, row, event);
}

function selectPeaks() {
  const plan = data.plans[data.plans.length - 1];
  const highest = plan.arenas.reduce((best, arena) => (best === null || arena.peak > best.peak ? arena : best), null);
  if (highest) select(plan, highest.peakStep);
}

const each = (act) => () => maps.forEach(act);
const ACTIONS = {
  "+": each((map) => map.zoom(0.8)),
  "-": each((map) => map.zoom(1.25)),
  0: each((map) => map.showAll()),
  p: selectPeaks,
  Escape: () => select(data.plans[0], null),
  ArrowLeft: each((map) => map.pan(80, 0)),
  ArrowRight: each((map) => map.pan(-80, 0)),
  ArrowUp: each((map) => map.pan(0, 80)),
  ArrowDown: each((map) => map.pan(0, -80)),
};

function control() {
  element("names").checked = shared.names;
  element("names").addEventListener("change", (event) => {
    shared.names = event.target.checked;
    maps.forEach((map) => map.redraw());
  });
  element("find").addEventListener("input", (event) => {
    shared.found = event.target.value.trim().toLowerCase();
    maps.forEach((map) => map.redraw());
  });
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
maps.forEach(listen);
control();
