// Four steps for a first visit. Nothing is covered: a line above the page, and a ring around what it speaks of.

import { element } from "./messages.js";

const STEPS = [
  { ring: "stage", after: "pick", text: "Click a patch of the image: an eye, a hand, the background. Dragging works too." },
  { ring: "answers", text: "Each model shows here what the patch attends to: attention may reach across the image, a Mamba scan fades along its scan order, a convolution stays near." },
  { ring: "answers", after: "row", text: "Move the pointer over a matrix: each row is one patch, which the image shows. Or press Play under the image." },
  { ring: "drop", after: "export", text: "Drop your own photograph anywhere on the page. “Save as one page” makes a file that works without this server." },
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
    element(now.ring).closest("details")?.setAttribute("open", "");
    element("tour-step").textContent = `${step + 1} of ${STEPS.length}`;
    element("tour-text").textContent = now.text;
    element("tour-next").textContent = step + 1 < STEPS.length ? "Next" : "Done";
    element("tour-end").hidden = step + 1 === STEPS.length;
  }
}
