// A mask of SIDE x SIDE pixels, stretched over what is seen of an image: 0 background, 1 foreground, 255 ignored.

const MAX_SIDE = 4096; // of the whole image: a narrow one is coarser

export class Mask {
  // `changes` counts them: an answer about the mask of before is late.
  constructor(side) {
    this.side = side;
    this.changes = 0;
    this.values = new Uint8Array(side * side);
    this.#setWhole(new Uint8Array(side * side));
  }

  get isEmpty() {
    return !this.values.some((value) => value === 1);
  }

  // Nor is there anything outside of what is seen.
  get isBlank() {
    return ![this.values, this.whole.values].some((values) => values.some(Boolean));
  }

  clear() {
    this.changes++;
    this.values.fill(0);
    this.#setWhole(new Uint8Array(this.side ** 2));
  }

  // All of it, to be restored.
  get state() {
    return this.isBlank ? null : { values: this.values, whole: this.whole, hides: this.hides };
  }

  restore({ values, whole, hides }) {
    this.changes++;
    this.values.set(values);
    Object.assign(this, { whole: structuredClone(whole), hides });
  }

  // Another part of the image is seen. `parts` are [left, top, right, bottom] of every fit, as shares of its sides. The
  // rest is kept in `whole`, and `hides` says whether some of the mask is not seen now.
  refit(parts, fromFit, toFit) {
    this.changes++;
    const [from, to] = [parts[fromFit], parts[toFit]];
    // One size for an image, as fine as its smallest part, so that what is not drawn over comes back as it was.
    this.whole = resized(this.whole, [0, 1].map((axis) => {
      const share = Math.min(...Object.values(parts).map((part) => part[axis + 2] - part[axis]));
      return Math.min(MAX_SIDE, Math.floor(this.side / share) + 1);
    }));
    const { values } = this.whole;
    const before = this.#seen(from);
    values.forEach((_, cell) => {
      const pixel = this.#pixelOf(cell, from);
      if (pixel >= 0 && this.values[pixel] !== before[pixel]) values[cell] = this.values[pixel];
    });
    this.values.set(this.#seen(to));
    this.hides = values.some((value, cell) => value === 1 && this.#pixelOf(cell, to) < 0);
  }

  #setWhole(values) {
    this.hides = false;
    this.whole = { width: this.side, height: this.side, values };
  }

  // What the whole has in one part of the image.
  #seen([left, top, right, bottom]) {
    const { width, height, values } = this.whole;
    const at = (place, first, last, count) => Math.floor((first + ((place + 0.5) / this.side) * (last - first)) * count);
    return this.values.map((_, pixel) => {
      const row = at(Math.floor(pixel / this.side), top, bottom, height);
      return values[row * width + at(pixel % this.side, left, right, width)];
    });
  }

  // Where a cell of the whole is in that part; -1: outside.
  #pixelOf(cell, [left, top, right, bottom]) {
    const { width, height } = this.whole;
    const x = (((cell % width) + 0.5) / width - left) / (right - left);
    const y = ((Math.floor(cell / width) + 0.5) / height - top) / (bottom - top);
    return Math.min(x, y) < 0 || Math.max(x, y) >= 1 ? -1 : Math.floor(y * this.side) * this.side + Math.floor(x * this.side);
  }

  // A line of dabs between two points; points and the reach of a dab, its two radii, as shares of the sides.
  stroke(from, to, reach, value) {
    this.changes++;
    const steps = Math.max(1, Math.ceil(Math.hypot((to.x - from.x) / reach.x, (to.y - from.y) / reach.y) * 2));
    for (let step = 0; step <= steps; step++) {
      const share = step / steps;
      this.#dab(from.x + share * (to.x - from.x), from.y + share * (to.y - from.y), reach, value);
    }
  }

  fillCell(row, column, grid, value) {
    this.changes++;
    const [top, bottom] = [row, row + 1].map((edge) => Math.round((edge / grid[0]) * this.side));
    const [left, right] = [column, column + 1].map((edge) => Math.round((edge / grid[1]) * this.side));
    for (let y = top; y < bottom; y++) this.values.fill(value, y * this.side + left, y * this.side + right);
  }

  #dab(x, y, reach, value) {
    const [centreX, centreY, across, down] = [x, y, reach.x, reach.y].map((share) => share * this.side);
    for (let row = Math.max(0, Math.floor(centreY - down)); row <= Math.min(this.side - 1, centreY + down); row++) {
      for (let column = Math.max(0, Math.floor(centreX - across)); column <= Math.min(this.side - 1, centreX + across); column++) {
        if (Math.hypot((column + 0.5 - centreX) / across, (row + 0.5 - centreY) / down) <= 1) this.values[row * this.side + column] = value;
      }
    }
  }

  // Runs of equal pixels, as the server takes them.
  toRuns() {
    const runs = [];
    let start = 0;
    for (let i = 1; i <= this.values.length; i++) {
      if (i === this.values.length || this.values[i] !== this.values[start]) {
        runs.push([this.values[start], i - start]);
        start = i;
      }
    }
    return runs;
  }

  // `whole`: of all of the image, where it is known.
  setRuns(runs, whole = [[0, this.side ** 2]]) {
    this.changes++;
    this.values.set(unpacked(runs));
    this.#setWhole(unpacked(whole));
  }

  // For links: the runs, deflated, in base64 without signs that addresses do not like.
  async toText() {
    const packed = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(JSON.stringify(this.toRuns())));
    return btoa(String.fromCharCode(...packed)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  // Unless the mask changes meanwhile.
  async setText(text) {
    const changes = this.changes;
    const packed = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    const runs = JSON.parse(new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), packed)));
    const total = runs.reduce((sum, [, length]) => sum + length, 0);
    if (total !== this.values.length || runs.some(([value]) => ![0, 1, 255].includes(value))) throw new Error("no mask");
    if (this.changes === changes) this.setRuns(runs);
  }
}

function unpacked(runs) {
  return Uint8Array.from(runs.flatMap(([value, length]) => Array(length).fill(value)));
}

// In cells that are larger or smaller, without smoothing.
function resized(whole, [width, height]) {
  const at = (place, count, from) => Math.floor(((place + 0.5) / count) * from);
  const values = new Uint8Array(width * height).map((_, cell) =>
    whole.values[at(Math.floor(cell / width), height, whole.height) * whole.width + at(cell % width, width, whole.width)]);
  return { width, height, values };
}

async function through(stream, bytes) {
  const piped = new Blob([bytes]).stream().pipeThrough(stream);
  return new Uint8Array(await new Response(piped).arrayBuffer());
}
