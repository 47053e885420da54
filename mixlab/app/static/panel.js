// One picture of a card: its canvases, its legend, its caption, and what stands there instead when there is none.

import { drawLegend, saveCanvas, shapeLike } from "./drawing.js";

const SIDE = 384; // pixels on the longer side

export function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export class Panel {
  constructor(title, { name, colours = null, pair = false }) {
    this.canvases = (pair ? [0, 1] : [0]).map(() => make("canvas", { width: SIDE, height: SIDE }));
    this.title = make("span", { textContent: title });
    this.caption = make("figcaption");
    this.words = make("span");
    this.note = make("div", { className: "note", hidden: true }, this.words);
    this.button = null;
    const save = make("button", { type: "button", className: "save", textContent: "PNG" });
    save.setAttribute("aria-label", `Download: ${title}, ${name}`);
    save.addEventListener("click", () => saveCanvas(this.joined(), `${fileName(name)}-${fileName(title)}.png`));
    const frame = make("div", { className: "frame" }, make("div", { className: pair ? "pair" : "" }, ...this.canvases), this.note);
    this.figure = make("figure", {}, make("h4", {}, this.title, save), frame);
    if (colours) {
      this.low = make("span");
      this.high = make("span");
      const bar = make("canvas", { width: 128, height: 1 });
      bar.setAttribute("aria-hidden", "true");
      drawLegend(bar, colours);
      this.figure.append(make("div", { className: "legend" }, this.low, bar, this.high));
    }
    this.figure.append(this.caption);
    this.canvases.forEach((canvas) => canvas.setAttribute("role", "img"));
    this.isShown = false;
  }

  // In the shape of the image that it shows.
  shapeLike(image) {
    this.canvases.forEach((canvas) => shapeLike(canvas, image, SIDE));
  }

  // A picture is there; `labels` say in words what each canvas shows.
  show({ caption, labels, low = "", high = "" }) {
    this.isShown = true;
    this.figure.classList.remove("empty", "busy");
    this.note.hidden = true;
    this.caption.textContent = caption;
    this.canvases.forEach((canvas, index) => canvas.setAttribute("aria-label", labels[index]));
    if (this.low) [this.low.textContent, this.high.textContent] = [low, high];
  }

  // No picture, and why; perhaps with a button.
  explain(text, action = null) {
    this.isShown = false;
    this.figure.classList.add("empty");
    this.figure.classList.remove("busy");
    this.caption.textContent = "";
    this.canvases.forEach((canvas) => canvas.setAttribute("aria-label", text));
    this.#say(text, action);
  }

  // Long work: how far it is, and a way to stop it.
  wait(share, note, cancel) {
    this.figure.classList.toggle("empty", !this.isShown);
    this.figure.classList.add("busy");
    this.#say(`${note}, ${Math.round(100 * share)} %`, { label: "Cancel", run: cancel });
  }

  joined() {
    if (this.canvases.length === 1) return this.canvases[0];
    const gap = 12;
    const [first] = this.canvases;
    const whole = make("canvas", { width: first.width * 2 + gap, height: first.height });
    this.canvases.forEach((canvas, index) => whole.getContext("2d").drawImage(canvas, index * (first.width + gap), 0));
    return whole;
  }

  // A button stays for as long as it says the same: a press that began on another one would do nothing.
  #say(text, action) {
    if (this.words.textContent !== text) this.words.textContent = text;
    this.run = action?.run;
    if (this.button?.textContent !== action?.label) {
      this.button?.remove();
      this.button = action && make("button", { type: "button", className: "small", textContent: action.label });
      this.button?.addEventListener("click", () => this.run());
      if (this.button) this.note.append(this.button);
    }
    this.note.hidden = false;
  }
}

export function fileName(text) {
  return text.replace(/[^\p{L}\p{N}.]+/gu, "-").replace(/^-|-$/g, "").toLowerCase();
}
