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
      tell("Using the sample's mask.");
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
      warn("");
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

  // The mask stays where it is on the image.
  async changeFit(fit) {
    this.#wanted = fit;
    const { image, mask: text } = this.host.view();
    if (text === "sample" || this.mask.isBlank) {
      this.host.leave({ fit });
      this.mask.clear();
      this.host.change({ fit });
      return text === "sample" ? this.takeSample() : undefined;
    }
    try {
      const { body } = await call(this.#path("fits"));
      if (this.#wanted !== fit) return;
      this.host.leave({ fit });
      const isHidden = this.host.view().image === image && this.mask.refit(body[this.host.view().fit], body[fit]);
      this.host.change({ fit, mask: "" });
      if (isHidden) tell("Part of the mask lies outside this crop. It is kept: the whole image shows it.");
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
