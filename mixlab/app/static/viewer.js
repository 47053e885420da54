// A view that was taken along: click a patch, or a row of a matrix, and see what it attends to. Needs no server.

import { viridis } from "./colours.js";
import { drawHeat, drawGround, drawLegend, markCell, markLine, percent, shapeLike, short } from "./drawing.js";

const view = JSON.parse(document.getElementById("data").textContent);
const isRow = view.sense === "row";
const INTRODUCTION = `Click a patch of the image. Each model shows which patches ${isRow ? "it reads" : "read it"}: bright is strong. Beside it is the `
  + `matrix of all patches: each row is a patch that reads, each column a patch that is read. The line marks the chosen patch; move along the ${view.sense}s to choose another.`;
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
const mask = view.mask && await picture(view.mask);
shapeLike(stage, image, 640);
const models = await Promise.all(view.models.map(async (model) => {
  const shades = Uint8Array.from(atob(model.shades), (character) => character.charCodeAt(0));
  const canvases = [0, 1].map(() => node("canvas", { width: 320, height: 320 }));
  shapeLike(canvases[0], image, 320);
  const [low, high] = [node("span"), node("span")];
  const legend = node("canvas", { width: 128, height: 1, ariaHidden: true });
  drawLegend(legend, viridis);
  const below = [[node("div", { className: "legend soft" }, low, legend, high)], []];
  const figures = model.titles.map((title, place) =>
    node("figure", {}, node("figcaption", { textContent: title }), canvases[place], ...below[place]));
  const caption = node("p", { className: "soft" });
  const heading = node("h2", { textContent: model.name });
  const about = node("p", { className: "soft", textContent: model.about });
  const pictures = model.pictures.map(({ title, address, words }, place) => node("figure", {},
    ...(address ? [node("img", { src: address, alt: `${title} of ${model.name}`, className: place ? "wide" : "" })] : []), node("p", { className: "soft", textContent: `${title}: ${words}` })));
  const score = node("p", { className: "soft", textContent: model.score });
  const more = node("details", {}, node("summary", { textContent: "Map and principal components" }), ...pictures);
  const element = node("article", { className: model.colour }, heading, about, node("div", { className: "pair" }, ...figures), caption, score, more);
  return { ...model, shades, canvases, low, high, lows: model.low, highs: model.high, caption, element, picture: await picture(model.matrix) };
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
  if (mask) context.drawImage(mask, 0, 0, stage.width, stage.height);
  markCell(stage, row, column, view.grid);
  said.textContent = `Patch in row ${row + 1}, column ${column + 1} of ${view.grid[0]} × ${view.grid[1]}. Click, or use the arrow keys.`;
  for (const { grid, shades, own, low, high, lows, highs, canvases, caption, name, titles, headName, hasMatrix, tokens, numTokens, picture } of models) {
    const [down, right] = cellIn(grid);
    const [count, patch] = [grid[0] * grid[1], down * grid[1] + right];
    drawHeat(canvases[0], { shape: grid, values: shades.subarray(patch * count, (patch + 1) * count) }, { colours: viridis, low: 0, high: 255, image: view.overlay ? image : null });
    markCell(canvases[0], down, right, grid);
    drawGround(canvases[1].getContext("2d"), picture);
    markLine(canvases[1], (tokens[patch] + 0.5) / numTokens, view.sense);
    [low.textContent, high.textContent] = [short(lows[patch]), short(highs[patch])];
    const scale = view.scale === "log" ? "; log scale" : "";
    caption.textContent = (hasMatrix ? `${headName}; ${percent(own[patch])} on itself` : headName) + scale;
    canvases[0].setAttribute("aria-label", `${titles[0]}, ${name}: ${caption.textContent}`);
    canvases[1].setAttribute("aria-label", `${titles[1]} of ${name}`);
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
    const patch = tokens.indexOf(Math.floor(pointOf(event)[isRow ? 1 : 0] * numTokens));
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
