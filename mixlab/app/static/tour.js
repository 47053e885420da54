// Four steps for a first visit. Nothing is covered: a line above the page, and a ring around what it speaks of.

import { element } from "./messages.js";

const STEPS = [
  { ring: "stage", after: "pick", text: "Click a patch of the image: an eye, a hand, the background. Dragging works too." },
  { ring: "answers", text: "Each model answers here. Attention may jump across the image, a Mamba scan fades along its reading order, a convolution stays near." },
  { ring: "answers", after: "row", text: "Move along a matrix: each row is one patch, and the image shows which. Or press Play under the image." },
  { ring: "drop", after: "export", text: "Drop a photograph of your own anywhere. “Save as one page” makes a file that works without this server." },
];

export class Tour {
  #step = -1;

  constructor() {
    element("tour-next").addEventListener("click", () => this.#go(this.#step + 1));
    element("tour-end").addEventListener("click", () => this.#go(STEPS.length));
    element("tour-start").addEventListener("click", () => this.#go(0));
    if (localStorage.getItem("tour") !== "seen") this.#go(0);
  }

  // Something was done: if this step asks for it, the next one begins.
  did(what) {
    if (STEPS[this.#step]?.after === what) this.#go(this.#step + 1);
  }

  #go(step) {
    const { ring } = STEPS[this.#step] ?? {};
    if (ring) element(ring).classList.remove("ringed");
    this.#step = step;
    const now = STEPS[step];
    element("tour").hidden = !now;
    if (!now) return localStorage.setItem("tour", "seen");
    element(now.ring).classList.add("ringed");
    element("tour-step").textContent = `${step + 1} of ${STEPS.length}`;
    element("tour-text").textContent = now.text;
    element("tour-next").textContent = step + 1 < STEPS.length ? "Next" : "Done";
    element("tour-end").hidden = step + 1 === STEPS.length;
  }
}
