// The view: what is looked at and how. It lives in the address, so that a link is a view.

export const DEFAULTS = {
  image: "", fit: "crop", models: [], map: "default", layer: 0, head: 0, part: 0,
  x: 0.5, y: 0.5, sense: "row", scale: "linear", overlay: true, mask: "",
};
const NUMBERS = ["layer", "head", "part", "x", "y"];
const CHOICES = { fit: ["crop", "squash"], sense: ["row", "column"], scale: ["linear", "log"] };

// What an address says, with the rest as it is by default; whatever makes no sense is left out.
export function readAddress(hash) {
  const said = new URLSearchParams(hash.replace(/^#/, ""));
  const view = { ...DEFAULTS, models: said.getAll("model") };
  for (const [key, value] of said) {
    if (NUMBERS.includes(key)) {
      const number = Number(value);
      if (Number.isFinite(number) && number >= 0) view[key] = ["x", "y"].includes(key) ? Math.min(number, 1) : Math.round(number);
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
  for (const [key, standard] of Object.entries(DEFAULTS)) {
    if (key === "models") view.models.forEach((model) => said.append("model", model));
    else if (key === "overlay") view.overlay || said.set("overlay", "0");
    else if (view[key] !== standard) said.set(key, ["x", "y"].includes(key) ? view[key].toFixed(4) : view[key]);
  }
  return `#${said}`;
}

// A slider over the deepest model: shallower ones are read at the same share of their depth. All count from 0.
export function layerOf(model, layer, deepest) {
  return deepest <= 1 ? 0 : Math.round(((layer - 1) / (deepest - 1)) * (model.num_layers - 1));
}
