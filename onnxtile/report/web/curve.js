// The page of a trade: a point of the picture and its row are one thing; both tell the costs, and copy the command that makes them.

const data = JSON.parse(element("data").textContent);
const circles = [...document.querySelectorAll("#trade circle")];
const rows = [...document.querySelectorAll("#points tbody tr")];
let here = null;

const pointOf = (circle) => Number(circle.dataset.point);

function costs(point) {
  const first = data.points[0], share = ((100 * point.arena) / first.arena).toFixed(1);
  const extra = first.macs ? `${(100 * (point.macs / first.macs - 1)).toFixed(1)}%` : "0";
  return [
    ["arena", `${counted(point.arena)} bytes${point.estimated ? ", estimated" : ""}`],
    ["of before", `${share}%`],
    ["MACs", `${counted(point.macs)} (+${extra})`],
    ["nodes", counted(point.nodes)],
    ["copied", `${counted(point.copied)} bytes`],
  ];
}

// Marks a point in the picture and in the table; null marks none.
function mark(number) {
  here = number;
  for (const circle of circles) circle.classList.toggle("here", pointOf(circle) === number);
  rows.forEach((row, i) => row.classList.toggle("here", i === number));
}

function tell(number, at) {
  const tip = element("tip"), point = data.points[number];
  mark(number);
  tip.replaceChildren();
  make("b", readable(point.arena), tip);
  factTable(costs(point), tip);
  tip.hidden = false;
  placeTip(tip, at);
}

function hide() {
  element("tip").hidden = true;
  mark(null);
}

// A page that is opened from a file may have no clipboard: then the browser copies what is selected.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", text, document.body);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

async function choose(number) {
  const { command } = data.points[number];
  element("command").textContent = command;
  element("copied").textContent = (await copy(command)) ? "copied" : "select it to copy";
}

function listen(target, number) {
  target.addEventListener("pointermove", (event) => tell(number, event));
  target.addEventListener("pointerleave", hide);
  target.addEventListener("click", () => choose(number));
}

for (const circle of circles) {
  circle.querySelector("title")?.remove();  // the box says it
  listen(circle, pointOf(circle));
}
rows.forEach((row, number) => {
  listen(row, number);
  const button = row.querySelector("button");
  button.addEventListener("focus", () => mark(number));
  button.addEventListener("blur", () => mark(null));
});
