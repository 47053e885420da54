// The view as one HTML file that needs no server: pictures, the rows of every patch, and the code that draws them.

import { magma } from "./colours.js";
import { drawGround, drawMask, drawShades, saveBlob, shapeLike } from "./drawing.js";
import { make } from "./panel.js";

const CODE = ["colours.js", "drawing.js", "viewer.js"];

export async function exportPage({ stage, cards, view, scores }) {
  const { sense, scale, overlay } = view; // all of it at once: the view may change while the rest is awaited
  const image = drawn((context) => drawGround(context, stage.image), stage.image).toDataURL("image/jpeg", 0.9);
  const mask = stage.mask.isBlank ? null : drawn((context) => drawMask(context, stage.mask), stage.image).toDataURL();
  const seen = { sense, scale, overlay, image, mask, cell: stage.cell(), grid: stage.grid };
  const models = await Promise.all(cards.map((card) => modelOf(card, scores.said(card))));
  const [style, ...code] = await Promise.all(["viewer.css", ...CODE].map(async (name) => (await fetch(`/static/${name}`)).text()));
  saveBlob(new Blob([pageOf({ ...seen, models }, style, code.map(withoutModules).join("\n"))], { type: "text/html" }), "mixlab.html");
}

async function modelOf(card, score) {
  const { matrix, map, pca } = card.panels;
  const seen = {
    name: card.model.id, about: card.about.textContent, colour: card.series.name, hasMatrix: card.model.has_matrix, score,
    titles: [card.rowTitle, matrix.title.textContent], pictures: [map, pca].map(pictureOf),
  };
  const [rows, whole] = await card.taken();
  const figures = ({ values }) => [...values].map((value) => Number(value.toPrecision(5)));
  return {
    ...seen, grid: rows.grid, headName: rows.head_name, shades: toText(rows.shades.values),
    own: figures(rows.own), low: figures(rows.low), high: figures(rows.high),
    matrix: drawn((context) => drawShades(context.canvas, whole.shades, magma)).toDataURL(), tokens: whole.patch_tokens, numTokens: whole.num_tokens,
  };
}

// What a panel shows, or why it shows nothing.
function pictureOf(panel) {
  const title = panel.title.textContent;
  return panel.isShown ? { title, address: panel.joined().toDataURL(), words: panel.caption.textContent } : { title, words: panel.words.textContent };
}

function pageOf(view, style, code) {
  const data = JSON.stringify(view).replaceAll("<", "\\u003c"); // names cannot end the script
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>mixlab: what does this patch attend to?</title>
<style>${style}</style>
</head>
<body>
<main id="view"></main>
<script type="application/json" id="data">${data}</script>
<script type="module">${code}</script>
</body>
</html>
`;
}

// One script has no modules to import from.
function withoutModules(code) {
  return code.replace(/^import .*\n/gm, "").replace(/^export /gm, "");
}

// A canvas of a square, or in the shape of an image.
function drawn(draw, image = null) {
  const canvas = make("canvas", { width: 640, height: 640 });
  shapeLike(canvas, image, 640);
  draw(canvas.getContext("2d"));
  return canvas;
}

function toText(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text);
}
