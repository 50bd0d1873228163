"use strict";
// The colours of the page around the tensors, light or dark as the reader's system is; page.css has them. Tensors keep theirs.

const THEME = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "ink", "muted", "edge", "inner", "gap", "live", "peak", "accent"]) THEME[name] = style.getPropertyValue(`--${name}`).trim();
}

readTheme();
