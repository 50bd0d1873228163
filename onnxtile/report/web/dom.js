// Elements of a page, and the box that tells of what is under the pointer.

const element = (id) => document.getElementById(id);

function make(tag, text, parent) {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

// A table of pairs of a label and a text.
function factTable(pairs, parent) {
  const made = make("table", "", parent);
  for (const [key, value] of pairs) {
    const line = make("tr", "", made);
    make("th", key, line);
    make("td", value, line);
  }
}

// Puts the box near a point of the window, inside of it.
function placeTip(tip, at) {
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(at.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, at.clientY + 18 + box.height > innerHeight ? at.clientY - box.height - 10 : at.clientY + 18)}px`;
}
