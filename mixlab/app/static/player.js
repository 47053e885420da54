// Plays the rows of all patches, one after the other, as fast as they are answered.

import { element } from "./messages.js";

const FRAME_MS = 90;

export class Player {
  #isPlaying = false;
  #numStarts = 0; // one that is stopped and started within a frame is the later one

  // `host`: next() moves on by a patch, isReady() tells whether all models have answered.
  constructor(host) {
    this.host = host;
    element("play").addEventListener("click", () => (this.#isPlaying ? this.stop() : this.#start()));
    addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
  }

  stop() {
    if (this.#isPlaying) this.#set(false);
  }

  async #start() {
    this.#set(true);
    const start = ++this.#numStarts;
    const isOn = () => this.#isPlaying && this.#numStarts === start;
    while (isOn()) {
      this.host.next();
      do await new Promise((resolve) => setTimeout(resolve, FRAME_MS));
      while (isOn() && !this.host.isReady());
    }
  }

  #set(isPlaying) {
    this.#isPlaying = isPlaying;
    element("play").setAttribute("aria-pressed", isPlaying);
    element("play").textContent = isPlaying ? "❚❚ Stop" : "▶ Play all patches";
  }
}
