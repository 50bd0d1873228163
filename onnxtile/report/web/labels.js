// Numbers and names as people read them.

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

function counted(number) { return number.toLocaleString("en"); }

// Round numbers from `low` to `high`, about `count` of them, none closer than `least`.
function ticks(low, high, count, least) {
  const raw = Math.max((high - low) / Math.max(count, 1), least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const by = Math.max(least, [1, 2, 5, 10].find((n) => n * power >= raw) * power);
  const found = [];
  for (let at = Math.ceil(low / by) * by; at <= high; at += by) found.push(at);
  return found;
}

// The end of a name, where names differ, in at most `room` characters: whole parts of the path if one fits.
function shortened(name, room) {
  if (name.length <= room) return name;
  const short = name.replace(/(_output_0)?(_(De)?[Qq]uantizeLinear_Output)?$/, "");
  if (short.length <= room) return short;
  if (room < 6) return "";
  for (let at = short.indexOf("/", 1); at >= 0; at = short.indexOf("/", at + 1)) if (short.length - at + 1 <= room) return `…${short.slice(at)}`;
  return `…${short.slice(short.length - room + 1)}`;
}
