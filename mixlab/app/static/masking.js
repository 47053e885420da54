// What changes the mask: a link, the sample's own, a file, the pointer, and another fit of the image.

import { refused, tell, warn } from "./messages.js";
import { call } from "./server.js";

const MAX_TEXT = 6000; // characters of an address

export class Masking {
  #wanted = ""; // the fit that was chosen last

  // `host`: view(), change(changes), score(), leave(changes) before a change of the mask that belongs to them.
  constructor(mask, host) {
    Object.assign(this, { mask, host });
  }

  // The mask of an address; `extra` is what it was if the visitor has been here.
  async follow(extra) {
    this.#wanted = "";
    this.mask.clear();
    const view = this.host.view();
    if (extra) return this.mask.restore(extra);
    if (view.mask === "sample") return this.takeSample();
    if (!view.mask) return;
    const { changes } = this.mask;
    try {
      await this.mask.setText(view.mask);
    } catch {
      if (this.mask.changes !== changes) return;
      view.mask = "";
      warn("The mask in this link cannot be read; it was left out.");
    }
  }

  async takeSample() {
    const { changes } = this.mask; // another image, fit, link or stroke, and the answer is late
    try {
      const { body } = await call(this.#path("mask"));
      if (this.mask.changes !== changes) return;
      this.mask.setRuns(body.mask, body.whole);
      this.host.change({ mask: "sample" });
      const isOutside = this.mask.isEmpty && !this.mask.isBlank;
      tell(isOutside ? "The sample's mask lies outside this crop: the whole image shows it." : "Using the sample's mask.");
    } catch (error) {
      if (this.mask.changes !== changes) return;
      this.host.view().mask = "";
      refused(error, `${error.message}.`);
    }
  }

  async takeFile(file) {
    if (!file) return;
    const { changes } = this.mask;
    try {
      const { body } = await call(this.#path("mask"), { method: "POST", body: await file.arrayBuffer() });
      if (this.mask.changes !== changes) return;
      this.mask.setRuns(body.mask, body.whole);
      warn(this.mask.isEmpty ? `${file.name} has no foreground here: in a mask, what is not 0 is foreground.` : "");
      this.drawn(true);
      tell(`Mask from ${file.name}.`);
    } catch (error) {
      if (this.mask.changes !== changes) return;
      refused(error, `${file.name} cannot be used as a mask: ${error.message}.`);
    }
  }

  clear() {
    this.mask.clear();
    this.drawn(true);
    tell("No mask.");
  }

  // The mask changed; in the middle of a stroke only the scores follow.
  async drawn(isDone) {
    if (!isDone) return this.host.score();
    const { changes } = this.mask;
    const text = this.mask.isEmpty ? "" : await this.mask.toText();
    if (this.mask.changes !== changes) return; // whoever changed it tells of it
    if (text.length > MAX_TEXT) tell("This mask is too detailed for a link; the link has the rest of the view.");
    this.host.change({ mask: text.length > MAX_TEXT ? "" : text });
  }

  // Mask and patch stay where they are on the image. `more` changes with the fit.
  async changeFit(fit, more = {}) {
    this.#wanted = fit;
    const { image } = this.host.view();
    try {
      const { body } = await call(this.#path("fits"));
      if (this.#wanted !== fit) return;
      this.host.leave({ fit, ...more });
      const view = this.host.view();
      if (view.image !== image) return this.host.change({ fit, ...more });
      const place = moved(view, body[view.fit], body[fit]);
      tell("");
      if (view.mask === "sample" || this.mask.isBlank) {
        const isSample = view.mask === "sample";
        this.mask.clear();
        this.host.change({ fit, ...more, ...place });
        return isSample ? this.takeSample() : undefined;
      }
      this.mask.refit(body, view.fit, fit);
      this.host.change({ fit, ...more, ...place, mask: "" });
      const outside = this.mask.isEmpty ? "The mask lies" : "Part of the mask lies";
      if (this.mask.hides) tell(`${outside} outside this crop. It is kept: the whole image shows it.`);
      await this.drawn(true);
    } catch (error) {
      refused(error, `${error.message}.`);
      this.host.change({}); // the fit of before is shown
    }
  }

  #path(what) {
    const { image, fit } = this.host.view();
    return `/api/pictures/${encodeURIComponent(image)}/${what}?fit=${fit}`;
  }
}

// A point of the image, as shares of another part of it.
function moved({ x, y }, from, to) {
  const along = (share, axis) => {
    const place = from[axis] + share * (from[axis + 2] - from[axis]);
    return Math.max(0, Math.min((place - to[axis]) / (to[axis + 2] - to[axis]), 0.9999));
  };
  return { x: along(x, 0), y: along(y, 1) };
}
