// Everything on the page as one picture to take along: the image, then a column per model.

import { saveCanvas } from "./drawing.js";
import { make } from "./panel.js";

const [CELL, GAP, HEAD, LINE] = [320, 26, 84, 64];
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
const ROWS = [["row", 0], ["matrix", 0], ["map", 0], ["pca", 0], ["pca", 1]];
const PCA_TITLES = ["First component", "Components 2 to 4"];

export function saveFigure(stage, cards) {
  const highs = ROWS.map(([kind, place]) => Math.max(...cards.map((card) => sizeOf(card.panels[kind].canvases[place])[1])));
  const tops = highs.map((_, row) => GAP + HEAD + highs.slice(0, row).reduce((sum, high) => sum + high + LINE + GAP, 0));
  const canvas = make("canvas", { width: GAP + (CELL + GAP) * (cards.length + 1), height: tops.at(-1) + highs.at(-1) + LINE + GAP });
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(stage, GAP, GAP + HEAD, ...sizeOf(stage));
  say(context, "mixlab", GAP, GAP + 16, { bold: true, size: 20 });
  cards.forEach((card, index) => {
    const left = GAP + (CELL + GAP) * (index + 1);
    say(context, card.model.id, left, GAP + 16, { bold: true, size: 20 });
    say(context, card.about.textContent, left, GAP + 38, { size: 13 });
    ROWS.forEach(([kind, place], row) => {
      const panel = card.panels[kind];
      const top = tops[row];
      if (panel.isShown) context.drawImage(panel.canvases[place], left, top, ...sizeOf(panel.canvases[place]));
      else say(context, panel.note.textContent, left, top + 20, { size: 13 });
      const title = kind === "pca" ? PCA_TITLES[place] : panel.title.textContent;
      const range = panel.low && panel.isShown ? ` (${panel.low.textContent} to ${panel.high.textContent})` : "";
      const below = say(context, title + range, left, top + highs[row] + 18, { size: 14 });
      say(context, panel.caption.textContent, left, below, { size: 12 });
    });
  });
  saveCanvas(canvas, "mixlab.png");
}

// How large a canvas is drawn: as wide as a column, or as high where it is taller.
function sizeOf({ width, height }) {
  return [width, height].map((side) => (CELL * side) / Math.max(width, height));
}

// Words in lines as long as a column is wide; where the next line would stand.
function say(context, text, left, base, { size, bold = false }) {
  context.font = `${bold ? "600 " : ""}${size}px ${FONT}`;
  context.fillStyle = bold ? "#1b1f24" : "#57606a";
  let line = "";
  let height = base;
  for (const word of text.split(" ")) {
    if (line && context.measureText(`${line} ${word}`).width > CELL) {
      context.fillText(line, left, height);
      line = word;
      height += 1.35 * size;
    } else {
      line = line ? `${line} ${word}` : word;
    }
  }
  context.fillText(line, left, height);
  return height + 1.35 * size;
}
