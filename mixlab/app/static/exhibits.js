// What analyses of these runs found: every result brings its own table, pictures and captions.

import { call } from "./server.js";

export async function showExhibits(place) {
  const { exhibits } = (await call("/api/exhibits")).body;
  place.hidden = exhibits.length === 0;
  place.replaceChildren(...exhibits.map(folded));
}

function folded(exhibit, number) {
  const node = document.createElement("details");
  node.className = "exhibit";
  node.append(made("summary", `${exhibit.title}: ${exhibit.run}`), made("p", exhibit.about));
  exhibit.captions.forEach((caption, figure) => {
    const picture = document.createElement("img");
    Object.assign(picture, { src: `/api/exhibits/${number}/${figure}`, alt: caption || exhibit.title, loading: "lazy" });
    const framed = document.createElement("figure");
    framed.append(picture, made("figcaption", caption));
    node.append(framed);
  });
  if (exhibit.rows.length) node.append(tableOf(exhibit));
  return node;
}

function tableOf({ columns, rows }) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(...columns.map((name) => Object.assign(made("th", name), { scope: "col" })));
  const body = table.createTBody();
  for (const row of rows) body.insertRow().append(...row.map((cell) => made("td", cell)));
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.append(table);
  return scroll;
}

function made(tag, text) {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}
