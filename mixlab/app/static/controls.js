// The column of choices: built from what the server offers, kept in step with the view.

import { element } from "./messages.js";
import { make } from "./panel.js";
import { deepestOf, headsOf, MAX_MODELS, numbered } from "./state.js";

const OWN_MAP = "cosine of the summary (class token, registers, or else the mean patch) to each patch";

// `host`: change(view changes), choose(image id), changeFit(fit), changeModels(ids).
export function buildControls(about, host) {
  element("samples").append(...about.samples.map((sample, index) =>
    thumbnail(sample.id, { alt: `Sample ${index + 1}`, title: sample.label, choose: host.choose })));
  element("models").append(...about.models.map((model) => {
    const input = make("input", { type: "checkbox", value: model.id });
    input.addEventListener("change", () => host.changeModels(chosen(about)));
    const more = model.architecture === model.id ? model.training : `${model.architecture}, ${model.training}`;
    return make("label", { title: more }, input, make("span", { className: "name", textContent: model.id }), make("small", { textContent: more }));
  }));
  const options = about.maps.map((map) => make("option", { value: map.id, textContent: map.id.replaceAll("_", " ") }));
  element("map").append(make("option", { value: "default", textContent: "cosine, as in the paper" }), ...options);
  for (const id of ["map", "sense", "scale"]) listen(id, (node) => host.change({ [id]: node.value }));
  for (const id of ["layer", "head", "part"]) listen(id, (node) => host.change({ [id]: Number(node.value) }));
  listen("overlay", (node) => host.change({ overlay: node.checked }));
  listen("fit", (node) => host.changeFit(node.value));
}

// A small picture of an image to choose.
export function thumbnail(id, { alt, title, choose }) {
  const input = make("input", { type: "radio", name: "image", value: id });
  input.addEventListener("change", () => choose(id));
  const picture = make("img", { src: `/api/pictures/${encodeURIComponent(id)}?fit=square&size=96`, alt, width: 96, height: 96 });
  return make("label", { title }, input, picture);
}

export function listen(id, run, event = "input") {
  element(id).addEventListener(event, (happened) => run(happened.target, happened));
}

// Pointer and brush act on the stage.
export function buildTools(stage) {
  const useTool = (tool) => {
    stage.tool = tool;
    stage.canvas.style.touchAction = tool === "pick" ? "manipulation" : "none"; // a finger scrolls, or draws
    element("stage-help").textContent = tool === "pick"
      ? `${matchMedia("(hover: none)").matches ? "Tap" : "Click"}, or use the arrow keys, to choose a patch.`
      : `Drag to ${tool}; with the keyboard, arrows move and Enter ${tool === "draw" ? "fills" : "clears"} the patch.`;
  };
  const useBrush = (size) => {
    stage.brush = size / 200;
    element("brush-text").textContent = `${size} %`; // its width
  };
  // The address is the view: it has no room for a place on the page.
  listen("skip", (_, event) => (event.preventDefault(), stage.canvas.focus()), "click");
  listen("tools", (node) => useTool(node.value));
  listen("brush", (node) => useBrush(Number(node.value)));
  useTool(document.querySelector("#tools input:checked").value);
  useBrush(Number(element("brush").value));
}

// Show a view. Returns it with what these models lack brought within bounds.
export function syncControls(about, view, models) {
  for (const id of ["fit", "map", "sense", "scale"]) element(id).value = view[id];
  element("overlay").checked = view.overlay;
  document.querySelectorAll("#samples input").forEach((input) => (input.checked = input.value === view.image));
  document.querySelectorAll("#models input").forEach((input) => {
    input.checked = view.models.includes(input.value);
    input.disabled = input.checked ? models.length === 1 : models.length >= MAX_MODELS;
  });
  element("model-count").textContent = `${models.length} chosen, at most ${MAX_MODELS}`;
  const map = about.maps.find((card) => card.id === view.map);
  element("map-about").textContent = map?.about ?? OWN_MAP;
  element("mask-sample").disabled = !about.samples.find((sample) => sample.id === view.image)?.has_mask;

  const squareOnly = models.filter((model) => model.multiple === null).map((model) => model.id);
  element("fit").querySelector("[value=whole]").disabled = squareOnly.length > 0;
  element("fit-about").hidden = !squareOnly.length;
  element("fit-about").textContent = `${squareOnly.join(" and ")} ${squareOnly.length > 1 ? "are" : "is"} shown squares only.`;

  const deepest = deepestOf(models);
  const layer = Math.min(view.layer, deepest - 1);
  setRange("layer", 0, deepest - 1, layer, numbered(layer, deepest));
  // A convolution has a head per channel: far more than others, so others set the range.
  const withHeads = models.filter((model) => model.family !== "gated_conv" && model.has_matrix);
  const mostHeads = Math.max(0, ...(withHeads.length ? withHeads : models).map((model) => headsOf(model, layer, deepest)));
  const head = Math.min(view.head, mostHeads - 1);
  setRange("head", -1, mostHeads - 1, head, head < 0 ? "mean" : numbered(head, mostHeads));
  const counts = { direction: 2, register: Math.max(1, ...models.map((model) => model.num_registers)) };
  const mostParts = counts[map?.parts] ?? 0;
  const part = Math.min(view.part, mostParts - 1);
  element("part-name").textContent = map?.parts === "direction" ? "Direction" : "Register";
  element("part").closest(".field").hidden = !mostParts;
  setRange("part", -1, mostParts - 1, part, part < 0 ? "mean" : numbered(part, mostParts));
  return { ...view, layer, head };
}

export function setTheme(theme) {
  localStorage.setItem("theme", theme);
  element("theme").value = theme;
  const isDark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}

// On a phone the buttons of the bar are a menu, which closes after a choice, Escape, or a touch elsewhere.
export function foldMenu() {
  const menu = element("menu");
  const phone = matchMedia("(max-width: 640px)");
  const close = () => phone.matches && (menu.open = false);
  const fit = () => (menu.open = !phone.matches);
  phone.addEventListener("change", fit);
  menu.addEventListener("click", (event) => event.target.closest("button") && close());
  addEventListener("pointerdown", (event) => menu.contains(event.target) || close());
  addEventListener("keydown", (event) => event.key === "Escape" && close());
  fit();
}

// On a small screen the choices are closed, so that image and answers are in view.
export function foldControls() {
  if (!matchMedia("(max-width: 860px)").matches) return;
  document.querySelectorAll(".controls details").forEach((group) => (group.open = false));
}

// Files may be dropped anywhere.
export function acceptDrops(useFile) {
  let depth = 0;
  const over = (change) => document.body.classList.toggle("dragging", (depth = Math.max(0, depth + change)) > 0);
  addEventListener("dragenter", () => over(1));
  addEventListener("dragleave", () => over(-1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(-depth);
    useFile(event.dataTransfer.files[0]);
  });
}

function chosen(about) {
  const checked = new Set([...document.querySelectorAll("#models input:checked")].map((input) => input.value));
  return about.models.map((model) => model.id).filter((id) => checked.has(id));
}

function setRange(id, min, max, value, text) {
  const input = element(id);
  Object.assign(input, { min, max: Math.max(max, min + 1), disabled: max <= min });
  input.value = value;
  input.setAttribute("aria-valuetext", text);
  input.closest(".field").classList.toggle("off", max <= min);
  element(`${id}-text`).textContent = text;
}
