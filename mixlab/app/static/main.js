// The page: one view, and everything on the page follows it.

import { Address } from "./address.js";
import { Card } from "./card.js";
import { seriesOf } from "./colours.js";
import { acceptDrops, buildControls, buildTools, foldControls, foldMenu, listen, setTheme, syncControls } from "./controls.js";
import { showExhibits } from "./exhibits.js";
import { exportPage } from "./export.js";
import { saveFigure } from "./figure.js";
import { Mask } from "./mask.js";
import { Masking } from "./masking.js";
import { element, refused, tell, tellPatch, tellSoon, tellTime, warn } from "./messages.js";
import { Player } from "./player.js";
import { Scores } from "./scores.js";
import { awaited, call, onConnection } from "./server.js";
import { Stage } from "./stage.js";
import { checked, deepestOf, fitFor, layerOf, readAddress } from "./state.js";
import { Tour } from "./tour.js";
import { Uploads } from "./uploads.js";

let about; // what the server offers
let view; // what is looked at
let wantedFit; // which may be another than that of the view, where a model takes squares only
let gridOf = ""; // the picture and the fit whose grids the cards know
let mask, masking, stage, scores, player, tour;
let cards = [];
let numCards = 0;
let imageAsked = "";
let numChoices = 0; // of images: a file that arrives after a later choice is not shown
const address = new Address({ view: () => view, extra: () => mask.state });
const uploads = new Uploads(choose);

setTheme(localStorage.getItem("theme") ?? "auto");
listen("theme", (node) => setTheme(node.value));
foldMenu();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(element("theme").value));
onConnection({ lost, back, busy: (isBusy) => element("cards").setAttribute("aria-busy", isBusy) });
start();

async function start() {
  try {
    about = (await call("/api/about")).body;
  } catch (error) {
    return refused(error, `${error.message}.`); // if it is away, `back` starts again
  }
  mask = new Mask(about.limits.mask_side);
  masking = new Masking(mask, { view: () => view, change, score: () => scores.ask(cards, view), leave: (changes) => address.leave(changes) });
  view = readAddress(location.hash);
  stage = new Stage(element("stage"), mask, { pick, drawn: (isDone) => masking.drawn(isDone) });
  scores = new Scores(mask);
  buildControls(about, { change, choose, changeModels, changeFit: (fit) => masking.changeFit((wantedFit = fit)) });
  buildTools(stage);
  acceptDrops(useFile);
  listen("file", (node) => useFile(node.files[0]).then(() => (node.value = "")), "change");
  listen("mask-file", (node) => masking.takeFile(node.files[0]).then(() => (node.value = "")), "change");
  listen("mask-sample", () => masking.takeSample(), "click");
  listen("mask-clear", () => masking.clear(), "click");
  listen("share", share, "click");
  listen("download", () => (saveFigure(element("stage"), cards), tell("Saved as mixlab.png.")), "click");
  listen("export", saveAsPage, "click");
  player = new Player({ next: nextPatch, isReady: () => cards.every((card) => card.isCurrent) });
  tour = new Tour();
  addEventListener("hashchange", followAddress);
  foldControls();
  uploads.showEarlier();
  await followAddress();
  await showExhibits(element("exhibits")).catch((error) => refused(error, `${error.message}.`));
}

// ---- the view

async function followAddress() {
  numChoices++;
  pinned = null;
  view = readAddress(address.follow());
  wantedFit = view.fit;
  view = checked(view, about);
  address.settle();
  tell("");
  await masking.follow(history.state);
  refresh();
}

function chosenModels() {
  return view.models.map((id) => about.models.find((model) => model.id === id));
}

// Questions already answered are not asked again.
function refresh() {
  const models = chosenModels();
  view = syncControls(about, view, models);
  syncCards(models);
  loadImage();
  const seen = `${view.image} ${view.fit}`;
  if (gridOf !== seen) cards.forEach((card) => (card.grid = null)); // another may have another shape
  gridOf = seen;
  Object.assign(stage, { x: view.x, y: view.y, grid: finestGrid() });
  stage.draw();
  cards.forEach((card) => card.refresh(view, deepestOf(models), stage.image));
  tellPatch(stage.cell(), stage.grid);
  address.keepSoon();
  scores.ask(cards, view);
}

function change(changes) {
  address.leave(changes);
  const before = deepestOf(chosenModels());
  view = { ...view, ...changes };
  if (changes.models) view.layer = layerOf({ num_layers: deepestOf(chosenModels()) }, view.layer, before); // the same share
  refresh();
}

function changeModels(models) {
  const fit = fitFor(about.models.filter((model) => models.includes(model.id)), wantedFit);
  if (fit === view.fit) change({ models });
  else masking.changeFit(fit, { models });
}

function pick(x, y) {
  pinned = null;
  player.stop();
  moveTo(x, y);
  tellSoon(() => {
    const [row, column] = stage.cell();
    return `Patch in row ${row + 1}, column ${column + 1}.`;
  });
  tour.did("pick");
}

// Show a patch while the pointer is over its row of a matrix; without one, return to the patch that was chosen.
let pinned = null;
function preview(x, y) {
  if (x === null) {
    if (pinned) moveTo(...pinned);
    pinned = null;
    return;
  }
  player.stop();
  pinned ??= [view.x, view.y];
  moveTo(x, y);
  tour.did("row");
}

function nextPatch() {
  const [height, width] = stage.grid;
  const [row, column] = stage.cell();
  const next = (row * width + column + 1) % (height * width);
  moveTo(((next % width) + 0.5) / width, (Math.floor(next / width) + 0.5) / height);
  tour.did("row");
}

// To the middle of the patch under a point; to the point itself while the grid of a new picture is not known.
function moveTo(x, y) {
  if (!cards.some((card) => card.grid)) return change({ x, y });
  const [height, width] = stage.grid;
  const centre = (share, count) => (Math.min(Math.floor(share * count), count - 1) + 0.5) / count;
  change({ x: centre(x, width), y: centre(y, height) });
}

function finestGrid() {
  const grids = cards.flatMap((card) => (card.grid ? [card.grid] : []));
  return grids.length ? grids.reduce((a, b) => (b[0] * b[1] > a[0] * a[1] ? b : a)) : stage.grid;
}

function syncCards(models) {
  const series = seriesOf(models);
  const wanted = models.map((model, index) => `${model.id} ${series[index].name} ${series[index].dash}`);
  if (wanted.join() === cards.map((card) => card.key).join()) return;
  const kept = new Map(cards.map((card) => [card.key, card]));
  cards = models.map((model, index) => {
    const host = { number: numCards++, pick, preview, timed: tellTime, changed: refresh, lostPicture };
    const card = kept.get(wanted[index]) ?? new Card(model, series[index], about.maps, host);
    kept.delete(wanted[index]);
    return Object.assign(card, { key: wanted[index] });
  });
  kept.forEach((card) => card.close());
  for (const [place, part] of [["answers", "answer"], ["cards", "element"]]) {
    element(place).style.setProperty("--columns", cards.length);
    element(place).dataset.count = cards.length;
    element(place).replaceChildren(...cards.map((card) => card[part]));
  }
}

async function share() {
  address.keep();
  try {
    await navigator.clipboard.writeText(location.href);
    const shown = uploads.has(view.image) ? " It shows your image as long as this server runs." : "";
    tell(`Link copied.${shown}${mask.hides ? " It has the part of the mask that is seen here." : ""}`);
  } catch {
    tell("The link is in the address bar.");
  }
}

async function saveAsPage() {
  tell("Collecting the rows of every patch…");
  try {
    await exportPage({ stage, cards, view, scores });
    tell("Saved as mixlab.html. The file works offline, without this server.");
    tour.did("export");
  } catch (error) {
    tell("");
    refused(error, `${error.message}.`);
  }
}

// ---- the image

function loadImage() {
  const path = `/api/pictures/${encodeURIComponent(view.image)}?fit=${view.fit}&size=768`;
  if (imageAsked === path) return;
  imageAsked = path;
  awaited(showImage(view.image, path));
}

async function showImage(id, path) {
  try {
    const response = await fetch(path);
    if (!response.ok) return lostPicture(id, (await response.json()).error.message);
    const image = await createImageBitmap(await response.blob());
    if (imageAsked !== path) return;
    stage.image = image;
    const index = about.samples.findIndex((sample) => sample.id === view.image);
    element("stage").setAttribute("aria-label", index < 0 ? "Image: your image" : `Image: sample ${index + 1}`);
    if (index < 0) uploads.show(id, "your image");
    refresh();
  } catch {
    if (imageAsked === path) imageAsked = ""; // the server is away, as the questions of the cards will find out
  }
}

async function useFile(file) {
  if (!file) return;
  const limit = about.limits.bytes / 2 ** 20;
  const size = Math.ceil(file.size / 2 ** 20);
  if (size > limit) return warn(`${file.name} has ${size} MB; the limit is ${limit} MB. Scale it down first.`);
  const choice = ++numChoices;
  tell(`Sending ${file.name}…`);
  try {
    const body = await uploads.send(file);
    uploads.show(body.id, file.name);
    if (choice !== numChoices) return;
    warn("");
    showPicture(body.id);
    tell(`${file.name}, ${body.width} × ${body.height} pixels.`);
  } catch (error) {
    if (choice !== numChoices) return;
    tell("");
    refused(error, `${file.name} cannot be used: ${error.message}.`);
  }
}

function choose(id) {
  numChoices++;
  warn("");
  showPicture(id);
}

function showPicture(id) {
  address.leave({ image: id });
  tell(mask.isBlank || view.mask === "sample" ? "" : "The mask stays with the other image: Back returns to both.");
  mask.clear();
  change({ image: id, mask: "" });
}

// The server has forgotten an upload: give it again if we still have it. Of one that is no longer looked at, no matter.
let isRestoring = false;
async function lostPicture(id, message) {
  if (isRestoring || id !== view.image) return;
  isRestoring = true;
  try {
    if (uploads.has(id)) {
      await uploads.sendAgain(id);
      askAnew();
    } else {
      warn(`${message}.`);
      uploads.forget(id);
      if (id === about.samples[0].id) return;
      showPicture(about.samples[0].id);
      address.settle(); // in place of what is gone: Back does not return to it
    }
  } catch (error) {
    refused(error, `${error.message}.`);
  } finally {
    isRestoring = false;
  }
}

// ---- a server that comes and goes

function lost() {
  warn("The server does not answer. If it has stopped, start it again; this page then continues.");
}

async function back(session) {
  warn("");
  tell("The server is back.");
  if (!about) return start();
  try {
    if (session !== about.session) {
      const offered = (await call("/api/about")).body;
      const names = ({ models, samples }) => JSON.stringify([models, samples]);
      if (names(offered) !== names(about)) return location.reload(); // it shows other things now
      about.session = session;
      if (uploads.has(view.image)) await uploads.sendAgain(view.image);
    }
    askAnew();
  } catch {
    // away again: the next time it is back
  }
}

function askAnew() {
  imageAsked = "";
  scores.forget();
  cards.forEach((card) => card.forget());
  document.querySelectorAll("#samples img").forEach((image) => image.naturalWidth || (image.src = image.src));
  refresh();
}
