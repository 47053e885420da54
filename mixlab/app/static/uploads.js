// The visitor's own images. Each has a thumbnail beside the samples, and is kept: a server that has forgotten it, as after
// a restart, can have it again.

import { thumbnail } from "./controls.js";
import { element } from "./messages.js";
import { call } from "./server.js";

const EARLIER = "mixlab-uploads"; // their names, until the tab is closed

export class Uploads {
  #files = new Map(); // id -> Blob
  #thumbnails = new Map();
  #names = {};

  // `choose(id)`: one is to be shown.
  constructor(choose) {
    this.choose = choose;
  }

  async send(file) {
    const kept = new Blob([await file.arrayBuffer()]); // the file may change on the disk
    const { body } = await call("/api/pictures", { method: "POST", body: kept });
    this.#files.set(body.id, kept);
    return body;
  }

  has(id) {
    return this.#files.has(id);
  }

  sendAgain(id) {
    return call("/api/pictures", { method: "POST", body: this.#files.get(id) });
  }

  // One that the server has, perhaps from a link.
  show(id, name) {
    if (this.#thumbnails.has(id)) return;
    this.#thumbnails.set(id, thumbnail(id, { alt: `Your image ${this.#thumbnails.size + 1}`, title: name, choose: this.choose }));
    this.#names[id] = name;
    element("samples").append(this.#thumbnails.get(id));
    this.#keepNames();
  }

  // Those of before a reload that the server still has.
  showEarlier() {
    for (const [id, name] of Object.entries(JSON.parse(sessionStorage.getItem(EARLIER) ?? "{}"))) {
      this.show(id, name);
      this.#thumbnails.get(id).querySelector("img").addEventListener("error", () => this.forget(id), { once: true });
    }
  }

  forget(id) {
    this.#thumbnails.get(id)?.remove();
    this.#thumbnails.delete(id);
    delete this.#names[id];
    this.#keepNames();
  }

  #keepNames() {
    sessionStorage.setItem(EARLIER, JSON.stringify(this.#names));
  }
}
