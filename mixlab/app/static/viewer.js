// A view that was taken along: click a patch, or a row of a matrix, and see what it attends to. Needs no server.

import { viridis } from "./colours.js";
import { drawHeat, drawGround, markCell, markLine, percent } from "./drawing.js";

const INTRODUCTION = "Click a patch of the image. Each model shows which patches it reads: bright is strong. Beside it is the "
  + "matrix of all patches: each row is a patch that reads, each column a patch that is read. The line marks the chosen patch; move along the rows to choose another.";
const view = JSON.parse(document.getElementById("data").textContent);
let [row, column] = view.cell;

function node(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function picture(address) {
  const image = new Image();
  image.src = address;
  return image.decode().then(() => image);
}

const stage = node("canvas", { width: 640, height: 640, tabIndex: 0 });
stage.setAttribute("aria-label", "Image: click, or use the arrow keys, to choose a patch");
const said = node("p", { className: "soft" });
const play = node("button", { type: "button", textContent: "▶ Play all patches" });
const image = await picture(view.image);
const models = await Promise.all(view.models.map(async (model) => {
  const shades = Uint8Array.from(atob(model.shades), (character) => character.charCodeAt(0));
  const canvases = [0, 1].map(() => node("canvas", { width: 320, height: 320 }));
  const figures = [model.hasMatrix ? "What it attends to" : "Similar patches", model.matrixName].map((title, place) =>
    node("figure", {}, node("figcaption", { textContent: title }), canvases[place]));
  const caption = node("p", { className: "soft" });
  const heading = node("h2", { textContent: model.name });
  const about = node("p", { className: "soft", textContent: model.about });
  const more = node("details", {}, node("summary", { textContent: "Map and principal components" }),
    node("img", { src: model.map, alt: `Activation map of ${model.name}` }), node("img", { src: model.pca, alt: `Principal components, ${model.name}`, className: "wide" }));
  const element = node("article", { className: model.colour }, heading, about, node("div", { className: "pair" }, ...figures), caption, more);
  return { ...model, shades, canvases, caption, element, picture: await picture(model.matrix) };
}));
document.getElementById("view").append(
  node("header", {}, node("h1", { textContent: "What does this patch attend to?" }), node("p", { textContent: INTRODUCTION })),
  node("section", { className: "stage" }, stage, said, play),
  node("section", { className: "answers" }, ...models.map((model) => model.element)),
  node("footer", { className: "soft" }, "Saved from mixlab. Look at a photograph of your own: ", node("code", { textContent: "mixlab look photo.jpg" })),
);

function cellIn([height, width]) {
  const share = (place, count) => (place + 0.5) / count;
  return [Math.floor(share(row, view.grid[0]) * height), Math.floor(share(column, view.grid[1]) * width)];
}

function draw() {
  const context = stage.getContext("2d");
  drawGround(context, image);
  markCell(stage, row, column, view.grid);
  said.textContent = `Patch in row ${row + 1}, column ${column + 1} of ${view.grid[0]} × ${view.grid[1]}. Click, or use the arrow keys.`;
  for (const { grid, shades, own, canvases, caption, name, headName, hasMatrix, tokens, numTokens, picture } of models) {
    const [down, right] = cellIn(grid);
    const [count, patch] = [grid[0] * grid[1], down * grid[1] + right];
    drawHeat(canvases[0], { shape: grid, values: shades.subarray(patch * count, (patch + 1) * count) }, { colours: viridis, low: 0, high: 255, image });
    markCell(canvases[0], down, right, grid);
    drawGround(canvases[1].getContext("2d"), picture);
    markLine(canvases[1], (tokens[patch] + 0.5) / numTokens, "row");
    caption.textContent = hasMatrix ? `${headName}; ${percent(own[patch])} on itself` : headName;
    canvases[0].setAttribute("aria-label", `What the patch attends to, ${name}: ${caption.textContent}`);
    canvases[1].setAttribute("aria-label", `Matrix of ${name}`);
  }
}

function pick(x, y) {
  [row, column] = [y, x].map((share, axis) => Math.max(0, Math.min(Math.floor(share * view.grid[axis]), view.grid[axis] - 1)));
  draw();
}

function pointOf(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
}

for (const canvas of [stage, ...models.map((model) => model.canvases[0])]) {
  canvas.addEventListener("pointerdown", (event) => (stop(), pick(...pointOf(event))));
  canvas.addEventListener("pointermove", (event) => event.buttons === 1 && pick(...pointOf(event)));
}
for (const { canvases, tokens, numTokens, grid } of models) {
  canvases[1].addEventListener("pointermove", (event) => {
    const patch = tokens.indexOf(Math.floor(pointOf(event)[1] * numTokens));
    if (patch >= 0) stop(), pick(((patch % grid[1]) + 0.5) / grid[1], (Math.floor(patch / grid[1]) + 0.5) / grid[0]);
  });
}
stage.addEventListener("keydown", (event) => {
  const move = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
  if (!move) return;
  event.preventDefault();
  pick((column + move[0] + 0.5) / view.grid[1], (row + move[1] + 0.5) / view.grid[0]);
});

let timer = null;
function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = "▶ Play all patches";
}
play.addEventListener("click", () => {
  if (timer) return stop();
  play.textContent = "❚❚ Stop";
  timer = setInterval(() => {
    const next = (row * view.grid[1] + column + 1) % (view.grid[0] * view.grid[1]);
    [row, column] = [Math.floor(next / view.grid[1]), next % view.grid[1]];
    draw();
  }, 90);
});
draw();
