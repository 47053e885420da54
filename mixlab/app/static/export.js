// The view as one HTML file that needs no server: pictures, the rows of every patch, and the code that draws them.

import { magma } from "./colours.js";
import { drawGround, drawShades, saveBlob } from "./drawing.js";
import { make } from "./panel.js";

const CODE = ["colours.js", "drawing.js", "viewer.js"];

// `image` as the stage shows it, with the chosen cell of its grid.
export async function exportPage(image, cards, cell, grid) {
  const shown = drawn((canvas) => drawGround(canvas.getContext("2d"), image)).toDataURL("image/jpeg", 0.9);
  const models = await Promise.all(cards.map(async (card) => {
    const seen = { // at once: the view may change while the rest is awaited
      name: card.model.id, about: card.about.textContent, matrixName: card.panels.matrix.title.textContent, colour: card.series.name,
      hasMatrix: card.model.has_matrix, map: card.panels.map.joined().toDataURL(), pca: card.panels.pca.joined().toDataURL(),
    };
    const [{ shades, own, grid, head_name }, matrix] = await card.taken();
    return {
      ...seen, grid, headName: head_name, shades: toText(shades.values), own: [...own.values].map((share) => Number(share.toPrecision(3))),
      matrix: drawn((canvas) => drawShades(canvas, matrix.shades, magma)).toDataURL(), tokens: matrix.patch_tokens, numTokens: matrix.num_tokens,
    };
  }));
  const view = { image: shown, cell, grid, models };
  const [style, ...code] = await Promise.all(["viewer.css", ...CODE].map(async (name) => (await fetch(`/static/${name}`)).text()));
  saveBlob(new Blob([pageOf(view, style, code.map(withoutModules).join("\n"))], { type: "text/html" }), "mixlab.html");
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

function drawn(draw) {
  const canvas = make("canvas", { width: 640, height: 640 });
  draw(canvas);
  return canvas;
}

function toText(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += 8192) text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  return btoa(text);
}
