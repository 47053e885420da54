// What the page says: a line for everyone, screen readers included, and a banner for what went wrong.

import { OfflineError } from "./server.js";

export const element = (id) => document.getElementById(id);

let timer;

export function tell(text) {
  clearTimeout(timer);
  element("status").textContent = text;
}

// For what changes fast: only the last is said, as it is by then.
export function tellSoon(text) {
  clearTimeout(timer);
  timer = setTimeout(() => tell(text()), 300);
}

export function warn(text) {
  element("banner").textContent = text;
  element("banner").hidden = !text;
}

// Of a server that is away, the page has told already.
export function refused(error, text) {
  if (!(error instanceof OfflineError)) warn(text);
}

export function tellTime(ms) {
  element("timing").textContent = `last answer computed in ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
}

export function tellPatch([row, column], grid) {
  element("patch-text").textContent = `Patch in row ${row + 1}, column ${column + 1} of ${grid[0]} × ${grid[1]}.`;
}
