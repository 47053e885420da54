// The view: what is looked at and how. It lives in the address, so that a link is a view. Layers, heads, registers and
// directions count from 0, as everywhere; -1 is the last layer, and the mean of the others.

export const MAX_MODELS = 4;
export const DEFAULTS = {
  image: "", fit: "whole", models: [], map: "isolation", layer: -1, head: -1, part: -1,
  x: 0.5, y: 0.5, sense: "row", scale: "linear", overlay: true, mask: "",
};
const COUNTED = ["layer", "head", "part"];
const CHOICES = { fit: ["whole", "square", "crop", "squash"], sense: ["row", "column"], scale: ["linear", "log"] };

// What an address says, with the rest as it is by default; whatever makes no sense is left out.
export function readAddress(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const view = { ...DEFAULTS, models: said.getAll("model") };
  const first = said.get("from") === "0" ? 0 : 1; // older links count from 1
  if (["x", "y"].some((key) => said.has(key)) || isDrawn(said.get("mask"))) view.fit = "square"; // as older links mean it
  for (const [key, value] of said) {
    const number = Number(value);
    if (COUNTED.includes(key)) {
      if (Number.isFinite(number) && number >= 0) view[key] = Math.round(number) - first;
    } else if (["x", "y"].includes(key)) {
      if (Number.isFinite(number) && number >= 0) view[key] = Math.min(number, 1);
    } else if (key in CHOICES) {
      if (CHOICES[key].includes(value)) view[key] = value;
    } else if (["image", "map", "mask"].includes(key)) {
      view[key] = value;
    } else if (key === "overlay") {
      view.overlay = value !== "0";
    }
  }
  return view;
}

// The same, backwards; what is as by default is left out.
export function writeAddress(view) {
  const said = new URLSearchParams();
  if (COUNTED.some((key) => view[key] !== DEFAULTS[key])) said.set("from", "0");
  for (const [key, standard] of Object.entries(DEFAULTS)) {
    if (key === "models") view.models.forEach((model) => said.append("model", model));
    else if (key === "overlay") view.overlay || said.set("overlay", "0");
    else if (view[key] !== standard || (key === "fit" && hasPlaces(view))) said.set(key, ["x", "y"].includes(key) ? view[key].toFixed(6) : view[key]);
  }
  return `#${said}`;
}

function isDrawn(mask) {
  return Boolean(mask) && mask !== "sample";
}

// What lies elsewhere in another part of the image.
function hasPlaces({ x, y, mask }) {
  return x !== DEFAULTS.x || y !== DEFAULTS.y || isDrawn(mask);
}

// A view within what this server offers.
export function checked(view, about) {
  const known = about.models.map((model) => model.id);
  const wanted = [...new Set(view.models)].filter((id) => known.includes(id)).slice(0, MAX_MODELS);
  const models = wanted.length ? wanted : known.slice(0, 3);
  const map = about.maps.some((offered) => offered.id === view.map) ? view.map : "default";
  const image = view.image || about.samples[0].id;
  const layer = view.layer < 0 ? deepestOf(about.models.filter((model) => models.includes(model.id))) - 1 : view.layer;
  const fit = fitFor(about.models.filter((model) => models.includes(model.id)), view.fit);
  return { ...view, models, map, image, layer, fit };
}

// All models are shown the same part of an image: the square where one takes nothing else.
export function fitFor(models, wanted) {
  return wanted === "whole" && models.some((model) => model.multiple === null) ? "square" : wanted;
}

export function deepestOf(models) {
  return Math.max(...models.map((model) => model.num_layers));
}

// A slider over the deepest model: shallower ones are read at the same share of their depth.
export function layerOf(model, layer, deepest) {
  return deepest <= 1 ? 0 : Math.round((layer / (deepest - 1)) * (model.num_layers - 1));
}

// How many heads it has there: none without a matrix.
export function headsOf(model, layer, deepest) {
  return model.num_heads[layerOf(model, layer, deepest)] ?? 0;
}

// "2 (0 to 11)": which one of how many.
export function numbered(index, count) {
  return `${index} (0 to ${count - 1})`;
}
