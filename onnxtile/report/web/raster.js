// Rectangles straight into pixels: tens of thousands of them take milliseconds in any browser, with or without a graphics card.

class Raster {
  // `ratio` is the number of pixels to a unit of the coordinates that are given to `fill` and `outline`.
  constructor(width, height, ratio) {
    this.ratio = ratio;
    this.width = Math.max(1, Math.round(width * ratio));
    this.height = Math.max(1, Math.round(height * ratio));
    this.image = new ImageData(this.width, this.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.clear();
  }

  clear() { this.pixels.fill(Raster.color(THEME.ground)); }

  // The colour "#rrggbb" as a pixel, mixed with so much of the ground that `strength` (0 to 1) of it is left.
  static color(text, strength = 1) {
    const part = (color, at) => parseInt(color.slice(at, at + 2), 16);
    const mixed = [1, 3, 5].map((at) => Math.round(part(THEME.ground, at) + (part(text, at) - part(THEME.ground, at)) * strength));
    return new Uint32Array(new Uint8Array([...mixed, 255]).buffer)[0];
  }

  // The pixels of a box, at least one in each direction; null where none is in sight.
  corners(box) {
    const left = Math.round(box.x * this.ratio), high = Math.round(box.y * this.ratio);
    const right = Math.max(left + 1, Math.round((box.x + box.width) * this.ratio));
    const low = Math.max(high + 1, Math.round((box.y + box.height) * this.ratio));
    if (right <= 0 || low <= 0 || left >= this.width || high >= this.height) return null;
    return { left, high, right, low };
  }

  fill(box, color) {
    const found = this.corners(box);
    if (found !== null) this.block(found.left, found.high, found.right, found.low, color);
  }

  // A line inside the edge of the box.
  outline(box, color) {
    const found = this.corners(box);
    if (found === null) return;
    const { left, high, right, low } = found, line = Math.max(1, Math.round(this.ratio));
    this.block(left, high, right, high + line, color);
    this.block(left, low - line, right, low, color);
    this.block(left, high, left + line, low, color);
    this.block(right - line, high, right, low, color);
  }

  // Diagonal lines over a box.
  hatch(box, color, distance) {
    const found = this.corners(box);
    if (found === null) return;
    const by = Math.round(distance * this.ratio), left = Math.max(0, found.left), right = Math.min(this.width, found.right);
    for (let y = Math.max(0, found.high); y < Math.min(this.height, found.low); y += 1) {
      for (let x = left + ((((-left - y) % by) + by) % by); x < right; x += by) this.pixels[y * this.width + x] = color;
    }
  }

  block(left, high, right, low, color) {
    const from = Math.max(0, left), to = Math.min(this.width, right);
    if (from >= to) return;
    for (let y = Math.max(0, high); y < Math.min(this.height, low); y += 1) this.pixels.fill(color, y * this.width + from, y * this.width + to);
  }
}
