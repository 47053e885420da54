// A mask of SIDE x SIDE pixels: 0 background, 1 foreground, 255 ignored.

export class Mask {
  // `changes` counts them: an answer about the mask of before is late.
  constructor(side) {
    this.side = side;
    this.changes = 0;
    this.values = new Uint8Array(side * side);
  }

  get isEmpty() {
    return !this.values.some((value) => value === 1);
  }

  clear() {
    this.changes++;
    this.values.fill(0);
  }

  // A line of round dabs between two points; points and radius as shares of the side.
  stroke(from, to, radius, value) {
    this.changes++;
    const steps = Math.max(1, Math.ceil((Math.hypot(to.x - from.x, to.y - from.y) / radius) * 2));
    for (let step = 0; step <= steps; step++) {
      const share = step / steps;
      this.#dab(from.x + share * (to.x - from.x), from.y + share * (to.y - from.y), radius, value);
    }
  }

  fillCell(row, column, grid, value) {
    this.changes++;
    const [top, bottom] = [row, row + 1].map((edge) => Math.round((edge / grid[0]) * this.side));
    const [left, right] = [column, column + 1].map((edge) => Math.round((edge / grid[1]) * this.side));
    for (let y = top; y < bottom; y++) this.values.fill(value, y * this.side + left, y * this.side + right);
  }

  #dab(x, y, radius, value) {
    const [centreX, centreY, reach] = [x * this.side, y * this.side, radius * this.side];
    for (let row = Math.max(0, Math.floor(centreY - reach)); row <= Math.min(this.side - 1, centreY + reach); row++) {
      for (let column = Math.max(0, Math.floor(centreX - reach)); column <= Math.min(this.side - 1, centreX + reach); column++) {
        if (Math.hypot(column + 0.5 - centreX, row + 0.5 - centreY) <= reach) this.values[row * this.side + column] = value;
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

  setRuns(runs) {
    this.changes++;
    let place = 0;
    for (const [value, length] of runs) {
      this.values.fill(value, place, place + length);
      place += length;
    }
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

async function through(stream, bytes) {
  const piped = new Blob([bytes]).stream().pipeThrough(stream);
  return new Uint8Array(await new Response(piped).arrayBuffer());
}
