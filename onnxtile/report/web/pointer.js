// What mouse, pen and fingers do on a map: hover, click, drag, wheel, pinch.

function point(map, event) {
  const box = map.canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function distance(a, b) { return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); }
function between(a, b) { return { clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 }; }

function hover(map, event) {
  const { x, y } = point(map, event), row = map.rowAt(x, y);
  if (row !== map.hovered) {
    map.hovered = row;
    map.redraw();
  }
  tell(map, row, event);
}

function listen(map) {
  const { canvas } = map, down = new Map();  // the pointers that touch the map, by their identifiers
  let moved = false;
  canvas.addEventListener("pointerdown", (event) => {
    if (down.size === 0) moved = false;
    down.set(event.pointerId, { clientX: event.clientX, clientY: event.clientY });
    if (down.size > 1) moved = true;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (before === undefined) return hover(map, event);
    const now = { clientX: event.clientX, clientY: event.clientY }, other = [...down].find(([id]) => id !== event.pointerId)?.[1];
    if (!moved && distance(before, now) < 4) return undefined;
    moved = true;
    canvas.classList.add("moving");
    tell(map, null, event);
    down.set(event.pointerId, now);
    if (other === undefined) map.pan(now.clientX - before.clientX, now.clientY - before.clientY);
    else pinch(map, between(before, other), between(now, other), distance(before, other) / Math.max(distance(now, other), 1));
    return undefined;
  });
  canvas.addEventListener("pointerup", (event) => {
    if (down.has(event.pointerId) && !moved) choose(map, event);
    down.delete(event.pointerId);
    if (down.size === 0) canvas.classList.remove("moving");
  });
  canvas.addEventListener("pointercancel", (event) => { down.delete(event.pointerId); });
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return;
    map.hovered = null;
    map.redraw();
    tell(map, null, event);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const by = event.deltaY || event.deltaX;  // with shift, some browsers turn the wheel sideways
    // A pinch on a touchpad comes as a wheel with Ctrl, in small steps.
    const factor = event.ctrlKey ? Math.exp(Math.max(-50, Math.min(by, 50)) / 100) : Math.exp(Math.sign(by) * Math.min(Math.abs(by), 120) / 500);
    map.zoom(factor, point(map, event), !event.altKey, !event.shiftKey);
  }, { passive: false });
  canvas.addEventListener("dblclick", () => map.showAll());
}

// Zooms around the middle of two fingers, which moves from `before` to `now`.
function pinch(map, before, now, factor) {
  map.pan(now.clientX - before.clientX, now.clientY - before.clientY);
  map.zoom(factor, point(map, now));
}

// A click or a tap: selects the step, or none where it was selected. A finger has no hover: it also tells of the tensor. After a click
// nothing covers the list of the step.
function choose(map, event) {
  const { x } = point(map, event), step = map.stepAt(x);
  if (event.pointerType === "touch") hover(map, event);
  else tell(map, null, event);
  select(map.plan, step === map.selected ? null : step);
}
