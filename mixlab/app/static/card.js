// One model. Beside the image: what the chosen patch attends to, and the mixing matrix. Below: its map and its principal
// components.

import { FAMILIES, magma, viridis } from "./colours.js";
import { drawColours, drawHeat, drawShades, markCell, markLine, percent, short } from "./drawing.js";
import { make, Panel } from "./panel.js";
import { ask, CancelledError, Channel, OfflineError, toArray } from "./server.js";
import { headsOf, layerOf, numbered } from "./state.js";

const MATRIX_NAMES = { attention: "Attention matrix", linear_attention: "Attention matrix", mamba2: "Scan matrix", mamba1: "Scan matrix", gated_conv: "Convolution matrix" };
const OF_IMAGE = ["row", "map", "pca"]; // the rest is a matrix
const KINDS = [...OF_IMAGE, "matrix"];

export class Card {
  // `host`: pick(x, y) chooses a patch, preview(x, y) shows one while the pointer is there, timed(ms) hears how long an answer took, changed() that a grid is known,
  // lostPicture(id, message) that the server has forgotten a picture.
  constructor(model, series, maps, host) {
    Object.assign(this, { model, series, maps, host, answers: {}, asked: {}, grid: null });
    this.channels = Object.fromEntries([...KINDS, "score", "sweep"].map((kind) => [kind, new Channel()]));
    const name = model.id;
    const matrix = model.has_matrix ? (MATRIX_NAMES[model.family] ?? "Mixing matrix") : "Similarity of features";
    this.panels = {
      row: new Panel("Chosen patch", { name, colours: viridis }),
      matrix: new Panel(matrix, { name, colours: magma }),
      map: new Panel("Activation map", { name, colours: viridis }),
      pca: new Panel("Principal components", { name, pair: true }),
    };
    this.about = make("p", { className: "about" });
    this.answer = this.#part("answer", `answer-${host.number}`, ["row", "matrix"], this.about);
    this.element = this.#part("card", `card-${host.number}`, ["map", "pca"]);
    for (const kind of OF_IMAGE) {
      for (const canvas of this.panels[kind].canvases) canvas.addEventListener("click", (event) => this.#pickPoint(event));
    }
    const canvas = this.panels.matrix.canvases[0];
    canvas.addEventListener("click", (event) => this.#useToken(event, host.pick));
    canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.#useToken(event, host.preview));
    canvas.addEventListener("pointerleave", () => host.preview(null));
  }

  // A heading and some of the pictures.
  #part(className, id, kinds, ...more) {
    const heading = make("h3", { textContent: this.model.id, id });
    const pictures = make("div", { className: "pictures" }, ...kinds.map((kind) => this.panels[kind].figure));
    const part = make("article", { className }, make("header", {}, heading, ...more), pictures);
    part.setAttribute("aria-labelledby", id);
    part.style.setProperty("--series", this.series.colour);
    return part;
  }

  // Ask for whatever this view lacks, and draw what is there.
  refresh(view, deepest, image) {
    Object.assign(this, { view, image });
    OF_IMAGE.forEach((kind) => this.panels[kind].shapeLike(image));
    this.layer = layerOf(this.model, view.layer, deepest);
    const head = Math.min(view.head, headsOf(this.model, view.layer, deepest) - 1); // the last where others have more
    this.head = head < 0 ? null : head;
    const { family, training, num_parameters: count, num_layers: depth, facts } = this.model;
    const size = count >= 1e6 ? `${(count / 1e6).toFixed(1)}\u00a0M` : `${Math.round(count / 1e3)}\u00a0k`;
    this.about.textContent = [FAMILIES[family] ?? family, training, `${size} parameters`, ...facts, `layer ${numbered(this.layer, depth)}`.replaceAll(" ", "\u00a0")].join(", ");
    this.#ask("map", { map: view.map }, this.#lacksMap(view.map));
    this.#ask("pca", {});
    this.#ask("matrix", { head: this.head });
    this.#ask("row", { head: this.head, x: view.x, y: view.y, sense: view.sense });
    this.draw();
  }

  // After the server was away: nothing that was asked counts.
  forget() {
    this.asked = {};
    this.close();
  }

  close() {
    Object.values(this.channels).forEach((channel) => channel.cancel());
  }

  // Whether the row of the patch that is shown has arrived.
  get isCurrent() {
    return this.panels.row.isReady && String(this.answers.row?.cell) === String(this.#cell(this.answers.row.values.shape));
  }

  get rowTitle() {
    if (!this.model.has_matrix) return "Similar patches";
    return this.view.sense === "row" ? "What it attends to" : "What attends to it";
  }

  // For a view to take along: all rows (or columns) in shades, and the matrix.
  async taken() {
    const { sense, scale } = this.view;
    const questions = [{ ...this.#base("rows"), head: this.head, sense, scale }, { ...this.#base("matrix"), head: this.head }];
    return Promise.all(questions.map(async (question) => decoded((await ask(question)).answer)));
  }

  // Binary-AUC of the map shown; `done(null)` where this model lacks the map.
  score(runs, done) {
    if (this.#lacksMap(this.view.map)) return done(null);
    const question = { ...this.#base("score"), map: this.view.map, part: this.part(), mask: runs };
    this.channels.score.ask(question, {
      answered: (answer, ms) => (this.host.timed(ms), done(answer)),
      failed: (error) => this.#failed(error, question, () => done(null)),
    });
  }

  sweep(runs, { progress, done }) {
    if (this.#lacksMap(this.view.map)) return done(null);
    const question = { ...this.#base("sweep"), layer: 0, map: this.view.map, part: this.part(), mask: runs };
    this.channels.sweep.ask(question, { answered: done, failed: () => done(null), progress });
  }

  // Which head, register or direction of the map is shown: none for the mean.
  part() {
    const map = this.view.map === "default" ? this.model.default_map : this.view.map;
    const parts = this.maps.find((card) => card.id === map)?.parts;
    const number = parts === "head" ? this.view.head : parts ? this.view.part : -1;
    return number < 0 ? null : number;
  }

  draw() {
    for (const kind of KINDS) if (this.answers[kind] && this.panels[kind].isReady) this[`draw_${kind}`](this.answers[kind]);
  }

  draw_map(answer) {
    const { shape, values } = answer.values;
    const [count, height, width] = shape;
    const cells = height * width;
    const part = this.part();
    const parts = this.maps.find((map) => map.id === answer.map).parts;
    // Of both directions, a head has one map together.
    const index = part === null ? null : parts === "head" ? part % count : Math.min(part, count - 1);
    const one = index === null ? mean(values, count, cells) : values.subarray(index * cells, (index + 1) * cells);
    const [low, high] = range(one);
    const panel = this.panels.map;
    drawHeat(panel.canvases[0], { shape: [height, width], values: one }, { colours: viridis, low, high, image: this.view.overlay ? this.image : null });
    const here = this.#mark(panel.canvases[0], [height, width]);
    const which = !parts ? "" : index === null ? `, mean of ${count} ${parts}${count === 1 ? "" : "s"}` : `, ${parts} ${numbered(index, count)}`;
    const caption = `${answer.map.replaceAll("_", " ")}${which}; chosen patch ${short(one[here])}`;
    panel.show({ caption, low: short(low), high: short(high), labels: [`Activation map of ${this.model.id}: ${caption}`] });
  }

  draw_row(answer) {
    const { shape, values } = answer.values;
    const sizes = values.map(Math.abs);
    const [row, column] = answer.cell;
    const own = row * shape[1] + column;
    const panel = this.panels.row;
    const overlay = this.view.overlay ? this.image : null;
    const top = sizes.reduce((a, b) => Math.max(a, b), 0);
    let [low, high] = range(sizes, own);
    let shown = sizes;
    if (this.view.scale === "log") {
      const bottom = Math.max(low, top * 1e-4) || 1e-30; // as the matrix is drawn: at most 4 powers of ten
      shown = sizes.map((size) => Math.log(Math.max(size, bottom)));
      [low, high] = [Math.log(bottom), Math.log(top || 1)];
    }
    drawHeat(panel.canvases[0], { shape, values: shown }, { colours: viridis, low, high, image: overlay });
    markCell(panel.canvases[0], row, column, shape);
    panel.title.textContent = this.rowTitle;
    const extra = answer.share_of_extra > 0.0005 ? `, ${percent(answer.share_of_extra)} on class token and registers` : "";
    const far = reach(sizes, shape, own);
    const weights = `half of the weight on others within ${far}\u00a0${far === 1 ? "patch" : "patches"}; ${percent(answer.share_of_self)} on itself${extra}`;
    const caption = this.model.has_matrix ? `${weights}; ${answer.head_name}` : answer.head_name;
    const ends = (this.view.scale === "log" ? [Math.exp(low), Math.exp(high)] : [low, high]).map(short);
    panel.show({ caption, low: ends[0], high: ends[1], labels: [`${panel.title.textContent}, ${this.model.id}: ${caption}`] });
  }

  draw_pca(answer) {
    const panel = this.panels.pca;
    const [low, high] = range(answer.first.values);
    drawHeat(panel.canvases[0], answer.first, { colours: viridis, low, high });
    drawColours(panel.canvases[1], answer.colours, answer.foreground.values);
    panel.canvases.forEach((canvas) => this.#mark(canvas, answer.first.shape));
    const [first, ...rest] = answer.explained;
    const caption = `first: ${percent(first)} of the variance; 2 to 4 in colour: ${percent(rest.reduce((a, b) => a + b, 0))}`;
    panel.show({ caption, labels: [`First principal component, ${this.model.id}`, `Components 2 to 4 on the foreground, ${this.model.id}`] });
  }

  draw_matrix(answer) {
    const panel = this.panels.matrix;
    drawShades(panel.canvases[0], answer.shades, magma);
    const [row, column] = this.#cell(answer.grid);
    const token = answer.patch_tokens[row * answer.grid[1] + column];
    markLine(panel.canvases[0], (token + 0.5) / answer.num_tokens, this.view.sense);
    const caption = `line: this patch; ${answer.head_name}, ${answer.num_tokens} tokens, log scale`;
    panel.show({
      caption, low: short(answer.low), high: short(answer.high),
      labels: [`${panel.title.textContent} of ${this.model.id}: ${caption}, token ${token + 1} marked`],
    });
  }

  #base(kind) {
    return { kind, picture: this.view.image, fit: this.view.fit, model: this.model.id, layer: this.layer };
  }

  #ask(kind, more, lacking = "") {
    const panel = this.panels[kind];
    if (lacking) {
      panel.isReady = false;
      this.asked[kind] = null;
      this.channels[kind].cancel();
      return panel.explain(lacking);
    }
    const question = { ...this.#base(kind), ...more };
    const text = JSON.stringify(question);
    if (this.asked[kind] === text) return;
    this.asked[kind] = text;
    const unlessLacking = (run) => (...told) => this.asked[kind] === null || run(...told); // in the view of now
    this.channels[kind].ask(question, {
      answered: unlessLacking((answer, ms) => {
        this.host.timed(ms);
        this.answers[kind] = decoded(answer);
        panel.isReady = true;
        if (kind === "pca") this.#learnGrid(this.answers.pca.first.shape);
        this[`draw_${kind}`](this.answers[kind]);
      }),
      failed: unlessLacking((error) => this.#failed(error, question, (message) => {
        panel.isReady = false;
        panel.explain(message, { label: "Try again", run: () => ((this.asked[kind] = ""), this.#ask(kind, more)) });
      })),
      progress: unlessLacking((share, note) => panel.wait(share, note, () => this.channels[kind].cancel())),
    });
  }

  #failed(error, { picture }, explain) {
    if (error instanceof OfflineError) return;
    if (error.status === 404) return this.host.lostPicture(picture, error.message);
    explain(error instanceof CancelledError ? "Cancelled." : capital(error.message));
  }

  #lacksMap(map) {
    if (map === "default" || this.model.maps.includes(map)) return "";
    return `This map needs ${this.maps.find((card) => card.id === map)?.needs ?? "something this model lacks"}.`;
  }

  #learnGrid(grid) {
    if (String(this.grid) === String(grid)) return;
    this.grid = grid;
    this.host.changed();
  }

  #cell([height, width]) {
    return [Math.min(Math.floor(this.view.y * height), height - 1), Math.min(Math.floor(this.view.x * width), width - 1)];
  }

  // Frame the chosen patch; its place among the cells.
  #mark(canvas, shape) {
    const [row, column] = this.#cell(shape);
    markCell(canvas, row, column, shape);
    return row * shape[1] + column;
  }

  #pickPoint(event) {
    const box = event.currentTarget.getBoundingClientRect();
    this.host.pick((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }

  // The patch whose row (or column) of the matrix is under the pointer.
  #useToken(event, use) {
    const answer = this.answers.matrix;
    if (!answer) return;
    const box = event.currentTarget.getBoundingClientRect();
    const share = this.view.sense === "row" ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width;
    const patch = answer.patch_tokens.indexOf(Math.floor(share * answer.num_tokens));
    const [height, width] = answer.grid;
    if (patch >= 0) use(((patch % width) + 0.5) / width, (Math.floor(patch / width) + 0.5) / height);
  }
}

// Answers with their arrays unpacked.
function decoded(answer) {
  return Object.fromEntries(Object.entries(answer).map(([key, value]) => [key, value?.data === undefined ? value : toArray(value)]));
}

function mean(values, count, cells) {
  if (count === 1) return values;
  const sums = new Float32Array(cells);
  values.forEach((value, index) => (sums[index % cells] += value / count));
  return sums;
}

// The least and the greatest, perhaps with one left out.
function range(values, without = -1) {
  let [low, high] = [Infinity, -Infinity];
  values.forEach((value, index) => {
    if (index !== without) [low, high] = [Math.min(low, value), Math.max(high, value)];
  });
  return [low, high];
}

// How far away, in patches, half of the weight on other patches lies.
function reach(sizes, [, width], own) {
  const [row, column] = [Math.floor(own / width), own % width];
  const others = [...sizes.keys()].filter((cell) => cell !== own);
  const distance = (cell) => Math.hypot(Math.floor(cell / width) - row, (cell % width) - column);
  let left = others.reduce((sum, cell) => sum + sizes[cell], 0) / 2;
  const ordered = others.map((cell) => [distance(cell), sizes[cell]]).sort(([a], [b]) => a - b);
  const [far] = ordered.find(([, size]) => (left -= size) <= 0) ?? [0];
  return Math.round(far);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
