// The address follows the view, and Back returns to the view of before. Another image, network or way to look is a step
// of the browser's history; sliders, patches and masks change the step that is there.

import { writeAddress } from "./state.js";

const STEPS = ["image", "fit", "models", "map", "sense", "scale", "overlay"];
const INTERVAL_MS = 350; // in a drag: Safari takes 100 changes in 30 seconds

export class Address {
  #timer = null;
  #keptAt = -INTERVAL_MS;
  #hash = location.hash;
  #step = "";

  // `host`: view() is what is shown, extra() what an address has no room for.
  constructor(host) {
    this.host = host;
  }

  // The address was changed by a link or by Back: it is read from now on.
  follow() {
    this.#hash = location.hash;
    return location.hash;
  }

  // The view belongs to the step that is there, whatever it shows.
  settle() {
    this.#step = stepOf(this.host.view());
  }

  // At once, so that a reload shows the same view; in a drag, as often as browsers allow.
  keepSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.keep(), Math.max(0, this.#keptAt + INTERVAL_MS - performance.now()));
  }

  keep() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (location.hash !== this.#hash) return; // a link was followed, and the page is about to hear of it
    const isStep = stepOf(this.host.view()) !== this.#step;
    this.settle();
    this.#keptAt = performance.now();
    history[isStep ? "pushState" : "replaceState"](this.host.extra(), "", writeAddress(this.host.view()));
    this.#hash = location.hash;
  }

  // Before these changes: if they are a step, the step that is left keeps its last state.
  leave(changes) {
    const isLeft = STEPS.some((key) => key in changes) && stepOf(this.host.view()) === this.#step;
    if (isLeft && this.#timer !== null) this.keep();
  }
}

function stepOf(view) {
  return JSON.stringify(STEPS.map((key) => view[key]));
}
