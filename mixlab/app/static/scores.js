// Does the map find the mask? Binary-AUC and ROC as the mask is drawn, and, as long work, at every layer.

import { drawChart, swatch } from "./charts.js";
import { element } from "./messages.js";
import { make } from "./panel.js";
import { toArray } from "./server.js";

const NO_MASK = "Draw a mask, upload one, or use the sample's. The Binary-AUC is updated as you draw.";
const NO_SCORE = "No score: the mask covers at least half of no patch, or of every patch. Draw more, or less.";

export class Scores {
  #found = new Map(); // model -> answer
  #asked = ""; // the scores of one layer
  #maps = ""; // which maps are scored
  #subject = ""; // against which mask, too
  #cards = [];
  #wasEmpty = true;

  constructor(mask) {
    this.mask = mask;
    element("sweep").addEventListener("click", () => this.#sweep());
    element("sweep-cancel").addEventListener("click", () => this.#cancelSweep());
    this.#draw();
    this.#drawLayers(new Map());
  }

  forget() {
    this.#asked = "";
  }

  // The score of a card in words; none without a mask.
  said(card) {
    const answer = this.#found.get(card.model.id);
    const map = (card.view.map === "default" ? card.model.default_map : card.view.map).replaceAll("_", " ");
    return answer?.roc ? `Binary-AUC of the map ${map} against the mask: ${answer.auc.toFixed(3)} (raw AUC ${answer.raw_auc.toFixed(3)})` : "";
  }

  // Ask for the scores of these cards, unless they are known.
  ask(cards, view) {
    this.#cards = cards;
    const isEmpty = this.mask.isEmpty;
    if (this.#wasEmpty !== isEmpty) element("scores").open = !isEmpty; // it opens with a mask; after that it is the visitor's
    this.#wasEmpty = isEmpty;
    element("sweep").disabled = isEmpty;
    const runs = isEmpty ? null : this.mask.toRuns();
    const parts = cards.map((card) => card.part());
    const maps = JSON.stringify([view.image, view.fit, view.map, parts, view.models]);
    const subject = JSON.stringify(runs) + maps;
    if (this.#asked === subject + view.layer) return;
    this.#asked = subject + view.layer;
    this.#maps = maps;
    if (this.#subject !== subject) {
      this.#subject = subject;
      this.#cancelSweep();
      this.#drawLayers(new Map());
    }
    this.#found = new Map([...this.#found].filter(([model]) => runs && view.models.includes(model)));
    this.#draw();
    if (isEmpty) return;
    for (const card of cards) {
      card.score(runs, (answer) => {
        if (this.mask.isEmpty || this.#maps !== maps) return; // it is about something else by now
        this.#found.set(card.model.id, answer);
        this.#draw();
      });
    }
  }

  #draw() {
    const found = this.#cards.map((card) => ({ card, answer: this.#found.get(card.model.id) }));
    const isUndefined = found.some(({ answer }) => answer?.auc === null);
    element("score-hint").hidden = !this.mask.isEmpty && !isUndefined;
    element("score-hint").textContent = isUndefined ? NO_SCORE : NO_MASK;
    const scored = found.filter(({ answer }) => answer?.roc);
    const said = scored.map(({ card, answer }) => `${card.model.id} ${answer.auc.toFixed(3)}`);
    drawChart(element("roc"), {
      lines: scored.map(({ card, answer }) => ({ series: card.series, points: pointsOf(toArray(answer.roc)) })),
      low: 0, high: 1, ticksX: [[0, "0"], [0.5, "0.5"], [1, "1"]], ticksY: [0, 0.5, 1], diagonal: true,
      nameX: "background marked", nameY: "foreground marked",
      alt: said.length ? `ROC curves. Binary-AUC: ${said.join(", ")}` : "ROC curves: no scores yet",
    });
    const rows = found.map(({ card, answer }) => {
      const cells = answer?.roc ? [answer.auc.toFixed(3), answer.raw_auc.toFixed(3)] : [answer === null ? "no such map" : "–", "–"];
      return tableRow([swatch(card.series), card.model.id], cells);
    });
    if (scored.length) rows.push(tableRow(["a blob in the centre, for comparison"], [scored[0].answer.centre_prior.toFixed(3), ""]));
    element("score-table").tBodies[0].replaceChildren(...rows);
  }

  #sweep() {
    const runs = this.mask.toRuns();
    const subject = this.#subject;
    const results = new Map();
    const shares = new Map(this.#cards.map((card) => [card, 0]));
    const show = () => (element("sweep-bar").value = [...shares.values()].reduce((a, b) => a + b, 0) / shares.size);
    this.#sweeping(true);
    for (const card of [...shares.keys()]) {
      card.sweep(runs, {
        progress: (share) => (shares.set(card, share), show()),
        done: (answer) => {
          shares.set(card, 1);
          show();
          if (answer) results.set(card, answer.auc);
          if (this.#subject === subject) this.#drawLayers(results);
          if ([...shares.values()].every((share) => share === 1)) this.#sweeping(false);
        },
      });
    }
  }

  #cancelSweep() {
    this.#cards.forEach((card) => card.channels.sweep.cancel());
  }

  #sweeping(isOn) {
    element("sweep").hidden = isOn;
    element("sweep-progress").hidden = !isOn;
    if (isOn) element("sweep-bar").value = 0;
  }

  #drawLayers(results) {
    const lines = [...results].map(([card, values]) => ({
      series: card.series,
      points: values.flatMap((value, i) => (value === null ? [] : [[values.length > 1 ? i / (values.length - 1) : 1, value]])),
    }));
    const said = [...results].map(([card, values]) => `${card.model.id}: ${values.map((value) => value?.toFixed(2) ?? "none").join(", ")}`);
    drawChart(element("layers"), {
      lines, low: 0.45, high: 1, ticksX: [[0, "first"], [1, "last"]], ticksY: [0.5, 0.75, 1], dots: true, nameX: "layer",
      nameY: "Binary-AUC", alt: said.length ? `Binary-AUC by layer. ${said.join("; ")}` : "Binary-AUC by layer: not computed yet",
    });
  }
}

// Rates (2, n) as n points.
function pointsOf({ shape, values }) {
  return Array.from({ length: shape[1] }, (_, i) => [values[i], values[shape[1] + i]]);
}

function tableRow(name, [main, ...rest]) {
  const score = make("td", {}, Number.isNaN(Number(main)) ? main : make("strong", { textContent: main }));
  return make("tr", {}, make("th", { scope: "row" }, ...name), score, ...rest.map((text) => make("td", { textContent: text })));
}
