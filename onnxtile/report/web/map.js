// One arena as a map on a canvas: steps across, addresses up, the live bytes of each step below. What it draws comes from
// report/page.py; it knows nothing of the page around it but the few things it is told (`shared`).

const MARGIN = { left: 72, right: 14, top: 24, axis: 38, strip: 60, gap: 14 };
const HEADROOM = 1.07, FACE = 'Inter, "Segoe UI", system-ui, "Helvetica Neue", "DejaVu Sans", sans-serif';
const TEXT = 11, LINE = 14, GLYPH = TEXT * 0.56, MOST_NAMES = 1500;
class ArenaMap {
  constructor(canvas, plan, arena, top, shared) {
    Object.assign(this, { canvas, plan, arena, top, shared, selected: null, hovered: null, pending: false });
    this.context = canvas.getContext("2d", { willReadFrequently: true });  // pixels come from the raster, not from a graphics card
    this.start = plan.start;
    this.paint();
    this.showAll();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  // Takes the colours of the theme, and of what tensors are coloured by.
  paint() {
    const groups = this.shared.coloring.groups;
    this.colors = groups.map((group) => Raster.color(group.color));
    this.faded = groups.map((group) => Raster.color(group.color, 0.22));
    this.redraw();
  }

  showAll() {
    this.window = { x0: this.start, x1: Math.max(this.plan.steps, this.start + 1), y0: 0, y1: this.top * HEADROOM };
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
    const most = Math.max(this.plan.steps, this.start + 1), high = this.top * HEADROOM;
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

  // Shows `row` large enough to be seen, in the middle where it was out of sight.
  show(row) {
    const { x0, x1, y0, y1 } = this.window, box = this.box(row), length = row.last + 1 - row.first;
    const width = box.width < 24 ? Math.min(x1 - x0, Math.max(12 * length, 12)) : Math.max(x1 - x0, length * 1.2);
    const height = box.height < 14 ? Math.min(y1 - y0, Math.max(12 * row.size, 64)) : Math.max(y1 - y0, row.size * 1.2);
    const isInSight = row.first >= x0 && row.last + 1 <= x1 && row.offset >= y0 && row.offset + row.size <= y1;
    if (!isInSight || width < x1 - x0 || height < y1 - y0) {
      this.place((row.first + row.last + 1 - width) / 2, width, row.offset + (row.size - height) / 2, height);
    }
    this.redraw();
  }

  // Shows the tensor of a name, where there is one.
  showNamed(name) {
    const row = this.arena.rows.find((one) => one.name === name);
    if (row) this.show(row);
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
    if (this.shared.names) this.drawNames(c, shown);
    this.drawLimits(c);
    this.drawMarked(c, this.hovered, THEME.ink);
    this.drawMarked(c, this.shared.current, THEME.accent);
    c.restore();
    this.drawLive(c);
    if (this.arena.peak) this.drawPeak(c);
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
    const { x0, x1, y0, y1 } = this.window, outlined = [], step = this.selected, { found, only, way } = this.shared;
    for (const row of this.arena.rows) {
      if (row.last + 1 <= x0 || row.first >= x1 || row.offset + row.size <= y0 || row.offset >= y1) continue;
      const box = this.box(row);
      const group = row.groups[way], { holder } = row;
      const faded = (step !== null && (holder.first > step || holder.last < step)) || (found !== "" && !row.hit && !holder.hit) || (only !== null && only !== group);
      this.raster.fill(this.inside(box), (faded ? this.faded : this.colors)[group]);
      const least = row.owner === null ? 3 : 7;  // less would be all line
      if (box.width > least && box.height > least) outlined.push({ row, box, faded });
    }
    for (const [shares, color] of [[true, Raster.color(THEME.inner)], [false, Raster.color(THEME.edge)]]) {
      for (const { row, box, faded } of outlined) if ((row.owner !== null) === shares && !faded) this.raster.outline(this.inside(box), color);
    }
    return outlined;
  }

  drawMarked(c, row, color) {
    if (!row || !this.arena.rows.includes(row)) return;
    const box = this.box(row);
    c.strokeStyle = color;
    c.lineWidth = 2.5;
    c.strokeRect(box.x, box.y, Math.max(box.width, 2), Math.max(box.height, 2));
  }

  // Writes the names of the tensors whose boxes have room, in what is in sight of them; of those that share bytes, the owner's.
  drawNames(c, shown) {
    const isAllBright = this.shared.only === null;
    c.fillStyle = isAllBright ? "#14181c" : THEME.ink;
    c.strokeStyle = isAllBright ? "#ffffff90" : THEME.ground;
    c.textAlign = "center";
    c.textBaseline = "middle";
    this.named = 0;
    for (const { row, box, faded } of shown) {
      if (row.owner !== null || faded || this.named >= MOST_NAMES) continue;
      const seen = this.inSight(box);
      if (this.write(c, row, this.besidePeak(seen)) || this.write(c, row, seen)) this.named += 1;
    }
  }

  // Writes a name along the longer side of a box, below it its bytes where there is room, and tells whether the name fits.
  write(c, row, { left, right, high, low }) {
    const upright = low - high > right - left, length = (upright ? low - high : right - left) - 6, depth = upright ? right - left : low - high;
    const text = depth < TEXT + 2 ? "" : shortened(row.name, Math.floor(length / GLYPH));
    if (!text) return false;
    const bytes = readable(row.size), isTwofold = depth > 2 * LINE + 4 && bytes.length * GLYPH < length;
    c.save();
    c.translate((left + right) / 2, (high + low) / 2);
    if (upright) c.rotate(-Math.PI / 2);
    c.font = `${TEXT}px ${FACE}`;
    this.line(c, text, isTwofold ? -LINE / 2 : 0, length);
    c.globalAlpha = 0.75;
    if (isTwofold) this.line(c, bytes, LINE / 2, length);
    c.restore();
    return true;
  }

  // Writes one line of a label, bright around its letters: aliases below it may have several colours.
  line(c, text, y, length) {
    c.lineWidth = 3;
    c.lineJoin = "round";
    c.strokeText(text, 0, y, length);
    c.fillText(text, 0, y, length);
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
    const { size, capacity } = this.arena;
    this.drawLimit(c, size, `arena ${readable(size)}`, THEME.ink, []);
    if (capacity !== null && capacity !== size) this.drawLimit(c, capacity, `capacity ${readable(capacity)}`, THEME.peak, [6, 4]);
  }

  // Draws a line at an address across all steps, with a text at its right end.
  drawLimit(c, bytes, text, color, dash) {
    const y = this.y(bytes), right = this.area.x + this.area.width;
    c.strokeStyle = color;
    c.setLineDash(dash);
    c.lineWidth = 1.25;
    c.beginPath();
    c.moveTo(this.area.x, y);
    c.lineTo(right, y);
    c.stroke();
    c.setLineDash([]);
    c.textAlign = "right";
    const isAbove = y - 18 > this.area.y;
    c.textBaseline = isAbove ? "bottom" : "top";
    this.halo(c, text, right - 4, isAbove ? y - 3 : y + 4, color);
  }

  // Writes a text that stays legible on whatever is below it.
  halo(c, text, x, y, color) {
    c.font = `600 12px ${FACE}`;
    c.strokeStyle = THEME.ground;
    c.lineWidth = 4;
    c.lineJoin = "round";
    c.strokeText(text, x, y);
    c.fillStyle = color;
    c.fillText(text, x, y);
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

  // Marks the peak step by a line, and says above it what runs then.
  drawPeak(c) {
    const { peak, peakStep } = this.arena, x = this.x(peakStep + 0.5), { area } = this;
    if (x < area.x || x > area.x + area.width) return;
    this.drawStep(c, peakStep, THEME.peak, [5, 3]);
    const node = this.plan.runs[peakStep], isRight = x > area.x + area.width / 2;
    const room = Math.floor(((isRight ? x - area.x : area.x + area.width - x) - 12) / (12 * 0.56));
    const text = `peak ${readable(peak)}, step ${counted(peakStep)}`, name = node ? shortened(node, room - text.length - 2) : "";
    c.textAlign = isRight ? "right" : "left";
    c.textBaseline = "bottom";
    this.halo(c, name ? `${text}: ${name}` : text, x + (isRight ? -5 : 5), area.y - 4, THEME.peak);
  }

  drawStep(c, step, color, dash) {
    const x = (this.x(step) + this.x(step + 1)) / 2;
    if (x < this.area.x || x > this.area.x + this.area.width) return;
    c.strokeStyle = color;
    c.lineWidth = 1.5;
    c.setLineDash(dash);
    c.beginPath();
    c.moveTo(x, this.area.y - 16);
    c.lineTo(x, this.strip.y + this.strip.height);
    c.stroke();
    c.setLineDash([]);
  }

  drawAxes(c) {
    const unit = unitOf(this.top), { area, strip } = this, base = strip.y + strip.height;
    c.strokeStyle = THEME.gap;
    c.fillStyle = THEME.muted;
    c.lineWidth = 1;
    c.font = `11px ${FACE}`;
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
      c.fillText(at.toLocaleString("en", { maximumFractionDigits: digits }), area.x - 6, this.y(at * unit.size));
    }
    c.fillText(Number((this.top / unit.size).toPrecision(3)).toLocaleString("en"), area.x - 6, strip.y + 5);
    c.fillText("0", area.x - 6, base - 4);
    c.textAlign = "center";
    this.upright(c, `address (${unit.name})`, area.y + area.height / 2);
    this.upright(c, `live (${unit.name})`, strip.y + strip.height / 2);
    c.textBaseline = "top";
    for (const at of ticks(this.window.x0, this.window.x1, area.width / 90, 1)) c.fillText(counted(at), this.x(at), base + 5);
    c.fillText("step", area.x + area.width / 2, base + 21);
  }

  // Writes the title of an axis along it.
  upright(c, text, y) {
    c.save();
    c.translate(13, y);
    c.rotate(-Math.PI / 2);
    c.textBaseline = "middle";
    c.fillText(text, 0, 0);
    c.restore();
  }
}
