// The image in large: choose a patch, draw a mask.

import { drawGround, drawMask, markCell, shapeLike } from "./drawing.js";

const SIDE = 768; // pixels on the longer side
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class Stage {
  // `host`: pick(x, y) chooses a patch, drawn(isDone) hears of the mask.
  constructor(canvas, mask, host) {
    Object.assign(this, { canvas, mask, host, image: null, grid: [16, 16], x: 0.5, y: 0.5, tool: "pick", brush: 0.04, from: null });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => this.#up());
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  draw() {
    const context = this.canvas.getContext("2d");
    shapeLike(this.canvas, this.image, SIDE);
    drawGround(context, this.image);
    drawMask(context, this.mask);
    markCell(this.canvas, ...this.cell(), this.grid);
  }

  cell() {
    const [height, width] = this.grid;
    return [Math.min(Math.floor(this.y * height), height - 1), Math.min(Math.floor(this.x * width), width - 1)];
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const inside = (value) => Math.max(0, Math.min(1, value));
    return { x: inside((event.clientX - box.left) / box.width), y: inside((event.clientY - box.top) / box.height) };
  }

  #down(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.from = this.#point(event);
    this.#use(this.from);
  }

  #move(event) {
    if (!this.from) return;
    const to = this.#point(event);
    this.#use(to);
    this.from = to;
  }

  #up() {
    if (!this.from) return;
    this.from = null;
    if (this.tool !== "pick") this.host.drawn(true);
  }

  #use(to) {
    if (this.tool === "pick") return this.host.pick(to.x, to.y);
    const stretch = Math.sqrt(this.canvas.width / this.canvas.height);
    const reach = { x: this.brush / stretch, y: this.brush * stretch }; // round on the image
    this.mask.stroke(this.from, to, reach, this.tool === "draw" ? 1 : 0);
    this.draw();
    this.host.drawn(false);
  }

  #key(event) {
    const [height, width] = this.grid;
    const [row, column] = this.cell();
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      const inside = (value, count) => Math.max(0, Math.min(count - 1, value));
      this.host.pick((inside(column + right, width) + 0.5) / width, (inside(row + down, height) + 0.5) / height);
    } else if ((event.key === "Enter" || event.key === " ") && this.tool !== "pick") {
      this.mask.fillCell(row, column, this.grid, this.tool === "draw" ? 1 : 0);
      this.draw();
      this.host.drawn(true);
    } else {
      return;
    }
    event.preventDefault();
  }
}
