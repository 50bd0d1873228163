// One arena as a map on a canvas: steps across, addresses up, the live bytes of each step below. What it draws comes from
// report/page.py; it knows nothing of the page around it but the few things it is told (`shared`).

const MARGIN = { left: 66, right: 10, top: 8, axis: 20, strip: 54, gap: 16 };
const TEXT = 10, GLYPH = TEXT * 0.6, MOST_NAMES = 1500;
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

function unitOf(bytes) {
  let power = 0;
  while (bytes >= 1024 ** (power + 1) && power + 1 < UNITS.length) power += 1;
  return { size: 1024 ** power, name: UNITS[power] };
}

function readable(bytes) {
  const unit = unitOf(bytes), value = bytes / unit.size;
  const digits = Number.isInteger(value) ? 0 : Math.max(0, 3 - String(Math.trunc(value)).length);
  return `${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit.name}`;
}

// Round numbers from `low` to `high`, about `count` of them, none closer than `least`.
function ticks(low, high, count, least) {
  const raw = Math.max((high - low) / Math.max(count, 1), least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const by = Math.max(least, [1, 2, 5, 10].find((n) => n * power >= raw) * power);
  const found = [];
  for (let at = Math.ceil(low / by) * by; at <= high; at += by) found.push(at);
  return found;
}

class ArenaMap {
  constructor(canvas, plan, arena, top, shared) {
    Object.assign(this, { canvas, plan, arena, top, shared, selected: null, hovered: null, pending: false });
    this.context = canvas.getContext("2d", { willReadFrequently: true });  // pixels come from the raster, not from a graphics card
    this.start = plan.start;
    this.paint();
    this.showAll();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  // Takes the colours of the theme.
  paint() {
    this.colors = new Map(this.plan.kinds.map((kind) => [kind.name, Raster.color(kind.color)]));
    this.faded = new Map(this.plan.kinds.map((kind) => [kind.name, Raster.color(kind.color, 0.25)]));
    this.redraw();
  }

  showAll() {
    this.window = { x0: this.start, x1: Math.max(this.plan.steps, this.start + 1), y0: 0, y1: this.top * 1.03 };
    this.redraw();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.area = {
      x: MARGIN.left,
      y: MARGIN.top,
      width: Math.max(1, box.width - MARGIN.left - MARGIN.right),
      height: Math.max(1, box.height - MARGIN.top - MARGIN.gap - MARGIN.strip - MARGIN.axis),
    };
    this.ratio = ratio;
    this.raster = new Raster(this.area.width, this.area.height, ratio);
    this.draw();
  }

  // Draws once in the next frame, however often it is asked to.
  redraw() {
    if (this.pending || !this.area) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  x(step) { return this.area.x + ((step - this.window.x0) / (this.window.x1 - this.window.x0)) * this.area.width; }
  y(bytes) { return this.area.y + this.area.height - ((bytes - this.window.y0) / (this.window.y1 - this.window.y0)) * this.area.height; }
  step(x) { return this.window.x0 + ((x - this.area.x) / this.area.width) * (this.window.x1 - this.window.x0); }
  bytes(y) { return this.window.y0 + ((this.area.y + this.area.height - y) / this.area.height) * (this.window.y1 - this.window.y0); }

  // Zooms by `factor` around a point of the canvas (the middle without one).
  zoom(factor, at, across = true, up = true) {
    const x = this.step(at ? at.x : this.area.x + this.area.width / 2), y = this.bytes(at ? at.y : this.area.y + this.area.height / 2);
    const { x0, x1, y0, y1 } = this.window;
    if (across && ((x1 - x0) * factor >= 1 || factor > 1)) this.place(x - (x - x0) * factor, (x1 - x0) * factor, y0, y1 - y0);
    if (up && ((y1 - y0) * factor >= 16 || factor > 1)) this.place(this.window.x0, this.window.x1 - this.window.x0, y - (y - y0) * factor, (y1 - y0) * factor);
    this.redraw();
  }

  pan(dx, dy) {
    const { x0, x1, y0, y1 } = this.window;
    this.place(x0 - (dx / this.area.width) * (x1 - x0), x1 - x0, y0 + (dy / this.area.height) * (y1 - y0), y1 - y0);
    this.redraw();
  }

  // Shows this much from here on, inside what there is.
  place(x0, width, y0, height) {
    const most = Math.max(this.plan.steps, this.start + 1), high = this.top * 1.03;
    width = Math.min(width, most - this.start);
    height = Math.min(height, high);
    x0 = Math.min(Math.max(x0, this.start), most - width);
    y0 = Math.min(Math.max(y0, 0), high - height);
    this.window = { x0, x1: x0 + width, y0, y1: y0 + height };
  }

  // Moves `step` into the middle where it is out of sight.
  reveal(step) {
    const { x0, x1, y0, y1 } = this.window;
    if (step < x0 || step + 1 > x1) this.place(step + 0.5 - (x1 - x0) / 2, x1 - x0, y0, y1 - y0);
  }

  // The step at a point of the canvas; null outside of them.
  stepAt(x) {
    const step = Math.floor(this.step(x));
    return x < this.area.x || x > this.area.x + this.area.width || step < this.start || step >= this.plan.steps ? null : step;
  }

  // The tensor at a point of the canvas: the one drawn last, that inside another's bytes.
  rowAt(x, y) {
    if (x < this.area.x || x > this.area.x + this.area.width || y < this.area.y || y > this.area.y + this.area.height) return null;
    const step = this.step(x), bytes = this.bytes(y);
    for (let i = this.arena.rows.length - 1; i >= 0; i -= 1) {
      const row = this.arena.rows[i];
      if (row.first <= step && step < row.last + 1 && row.offset <= bytes && bytes < row.offset + row.size) return row;
    }
    return null;
  }

  box(row) {
    const x = this.x(row.first), y = this.y(row.offset + row.size);
    return { x, y, width: this.x(row.last + 1) - x, height: this.y(row.offset) - y };
  }

  draw() {
    const began = performance.now(), { context: c, area } = this;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.raster.clear();
    this.drawGap();
    const shown = this.drawTensors();
    c.putImageData(this.raster.image, Math.round(area.x * this.ratio), Math.round(area.y * this.ratio));
    c.save();
    c.beginPath();
    c.rect(area.x, area.y, area.width, area.height);
    c.clip();
    this.drawHovered(c);
    if (this.shared.names) this.drawNames(c, shown);
    this.drawLimits(c);
    c.restore();
    this.drawLive(c);
    if (this.arena.peak) this.drawStep(c, this.arena.peakStep, THEME.peak, [5, 3]);
    if (this.selected !== null) this.drawStep(c, this.selected, THEME.ink, []);
    this.drawAxes(c);
    this.took = performance.now() - began;
  }

  // A box of the canvas in the raster, which begins where the area does.
  inside(box) { return { ...box, x: box.x - this.area.x, y: box.y - this.area.y }; }

  drawGap() {
    if (!this.arena.gap) return;
    const high = this.y(this.arena.size), low = this.y(this.arena.peak);
    this.raster.hatch(this.inside({ x: this.area.x, y: high, width: this.area.width, height: low - high }), Raster.color(THEME.gap), 9);
  }

  // Fills all tensors in sight, in the order of the rows, and returns those that are large enough for an outline.
  drawTensors() {
    const { x0, x1, y0, y1 } = this.window, outlined = [], step = this.selected, found = this.shared.found;
    for (const row of this.arena.rows) {
      if (row.last + 1 <= x0 || row.first >= x1 || row.offset + row.size <= y0 || row.offset >= y1) continue;
      const box = this.box(row);
      const faded = (step !== null && (row.first > step || row.last < step)) || (found !== "" && !row.search.includes(found));
      this.raster.fill(this.inside(box), faded ? this.faded.get(row.shown) : this.colors.get(row.shown));
      const least = row.owner === null ? 3 : 7;  // less would be all line
      if (box.width > least && box.height > least) outlined.push({ row, box, faded });
    }
    for (const [shares, color] of [[true, Raster.color(THEME.inner)], [false, Raster.color(THEME.edge)]]) {
      for (const { row, box, faded } of outlined) if ((row.owner !== null) === shares && !faded) this.raster.outline(this.inside(box), color);
    }
    return outlined;
  }

  drawHovered(c) {
    if (!this.hovered) return;
    const box = this.box(this.hovered);
    c.strokeStyle = THEME.ink;
    c.lineWidth = 2;
    c.strokeRect(box.x, box.y, Math.max(box.width, 1), Math.max(box.height, 1));
  }

  // Writes the names of the tensors whose boxes have room, in what is in sight of them; of those that share bytes, the owner's.
  drawNames(c, shown) {
    c.fillStyle = "#111";
    c.font = `${TEXT}px system-ui, "DejaVu Sans", sans-serif`;
    c.textAlign = "center";
    c.textBaseline = "middle";
    this.named = 0;
    for (const { row, box, faded } of shown) {
      if (row.owner !== null || faded || this.named >= MOST_NAMES) continue;
      const seen = this.inSight(box);
      if (this.write(c, row.name, this.besidePeak(seen)) || this.write(c, row.name, seen)) this.named += 1;
    }
  }

  // Writes a name along the longer side of a box, and tells whether it fits.
  write(c, name, { left, right, high, low }) {
    const upright = low - high > right - left, length = upright ? low - high : right - left, depth = upright ? right - left : low - high;
    const text = depth < TEXT + 2 ? "" : shortened(name, Math.floor((length - 4) / GLYPH));
    if (!text) return false;
    c.save();
    c.translate((left + right) / 2, (high + low) / 2);
    if (upright) c.rotate(-Math.PI / 2);
    c.fillText(text, 0, 0);
    c.restore();
    return true;
  }

  inSight(box) {
    const { area } = this;
    return {
      left: Math.max(box.x, area.x),
      right: Math.min(box.x + box.width, area.x + area.width),
      high: Math.max(box.y, area.y),
      low: Math.min(box.y + box.height, area.y + area.height),
    };
  }

  // The wider part of a box beside the line of the peak; all of it where that does not cross.
  besidePeak(seen) {
    const line = this.x(this.arena.peakStep + 0.5);
    if (line <= seen.left || line >= seen.right) return seen;
    return line - seen.left > seen.right - line ? { ...seen, right: line } : { ...seen, left: line };
  }

  drawLimits(c) {
    const line = (bytes, color, dash) => {
      c.strokeStyle = color;
      c.setLineDash(dash);
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(this.area.x, this.y(bytes));
      c.lineTo(this.area.x + this.area.width, this.y(bytes));
      c.stroke();
      c.setLineDash([]);
    };
    line(this.arena.size, THEME.ink, []);
    if (this.arena.capacity !== null) line(this.arena.capacity, THEME.peak, [6, 4]);
  }

  get strip() {
    const y = this.area.y + this.area.height + MARGIN.gap;
    return { y, height: MARGIN.strip };
  }

  // Fills, for each pixel across, up to the most that lives at any of its steps.
  drawLive(c) {
    const { live } = this.arena, { y, height } = this.strip, base = y + height;
    c.fillStyle = THEME.live;
    c.beginPath();
    for (let at = 0, next = 1; at < this.area.width; at += 1) {
      const from = Math.max(0, Math.floor(this.step(this.area.x + at))), to = Math.max(from + 1, Math.floor(this.step(this.area.x + at + 1)));
      let most = 0;
      for (; next < live.length && live[next][0] <= from; next += 1);
      for (let i = next - 1; i < live.length && live[i][0] < to; i += 1) if (live[i][1] > most) most = live[i][1];
      const tall = (most / this.top) * height;
      c.rect(this.area.x + at, base - tall, 1, tall);
    }
    c.fill();
  }

  drawStep(c, step, color, dash) {
    const x = (this.x(step) + this.x(step + 1)) / 2;
    if (x < this.area.x || x > this.area.x + this.area.width) return;
    c.strokeStyle = color;
    c.lineWidth = 1.5;
    c.setLineDash(dash);
    c.beginPath();
    c.moveTo(x, this.area.y);
    c.lineTo(x, this.strip.y + this.strip.height);
    c.stroke();
    c.setLineDash([]);
  }

  drawAxes(c) {
    const unit = unitOf(this.top), { area, strip } = this, base = strip.y + strip.height;
    c.strokeStyle = THEME.muted;
    c.fillStyle = THEME.muted;
    c.lineWidth = 1;
    c.font = '11px system-ui, "DejaVu Sans", sans-serif';
    c.beginPath();
    c.moveTo(area.x, area.y);
    c.lineTo(area.x, area.y + area.height);
    c.lineTo(area.x + area.width, area.y + area.height);
    c.moveTo(area.x, strip.y);
    c.lineTo(area.x, base);
    c.lineTo(area.x + area.width, base);
    c.stroke();
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const at of ticks(this.window.y0 / unit.size, this.window.y1 / unit.size, area.height / 50, 0)) {
      const digits = Math.max(0, Math.ceil(-Math.log10((this.window.y1 - this.window.y0) / unit.size / 20)));
      c.fillText(at.toLocaleString("en", { maximumFractionDigits: digits }), area.x - 5, this.y(at * unit.size));
    }
    c.fillText("live", area.x - 5, strip.y + strip.height / 2);
    c.fillText("step", area.x - 14, base + 11);
    c.textAlign = "left";
    c.fillText(unit.name, 2, area.y + 4);
    c.textAlign = "center";
    c.textBaseline = "top";
    for (const at of ticks(this.window.x0, this.window.x1, area.width / 90, 1)) c.fillText(at.toLocaleString("en"), this.x(at), base + 5);
  }
}

// The end of a name, where names differ, in at most `room` characters.
function shortened(name, room) {
  if (name.length <= room) return name;
  const short = name.replace(/_output_0$/, "");
  if (short.length <= room) return short;
  return room >= 6 ? `…${short.slice(short.length - room + 1)}` : "";
}
