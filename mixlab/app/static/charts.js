// Curves as vector pictures: one colour and one dash per model.

const NAMESPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [260, 240, 30, 32, 22, 8];

function shape(name, attributes, text = "") {
  const node = document.createElementNS(NAMESPACE, name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  node.textContent = text;
  return node;
}

// Lines of {points: [[x, y], ...], series} with x from 0 to 1 and y between low and high.
export function drawChart(place, { lines, low, high, ticksX, ticksY, nameX, nameY, alt, diagonal = false, dots = false }) {
  const toX = (x) => LEFT + x * (WIDTH - LEFT - RIGHT);
  const toY = (y) => HEIGHT - BOTTOM - ((y - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": alt });
  svg.append(shape("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }));
  for (const [x, label] of ticksX) {
    svg.append(shape("text", { class: "tick", x: toX(x), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, label));
  }
  for (const y of ticksY) {
    svg.append(shape("text", { class: "tick", x: LEFT - 6, y: toY(y) + 4, "text-anchor": "end" }, String(y)));
  }
  svg.append(shape("text", { class: "tick", x: toX(0.5), y: HEIGHT - 3, "text-anchor": "middle" }, nameX));
  svg.append(shape("text", { class: "tick", x: 0, y: 10 }, nameY));
  if (diagonal) svg.append(shape("path", { class: "chance", d: `M${toX(0)} ${toY(0)}L${toX(1)} ${toY(1)}` }));
  else svg.append(shape("path", { class: "chance", d: `M${toX(0)} ${toY(0.5)}H${toX(1)}` }));
  for (const { points, series } of lines) {
    const path = points.map(([x, y], index) => `${index ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`).join("");
    const line = shape("path", { d: path, fill: "none", "stroke-width": 2, "stroke-dasharray": series.dash || "none", "stroke-linejoin": "round" });
    line.style.stroke = series.colour;
    svg.append(line);
    if (!dots) continue;
    for (const [x, y] of points) {
      const dot = shape("circle", { cx: toX(x), cy: toY(y), r: 2.6 });
      dot.style.fill = series.colour;
      svg.append(dot);
    }
  }
  place.replaceChildren(svg);
}

// The line of a model, small, for tables.
export function swatch(series) {
  const svg = shape("svg", { viewBox: "0 0 20 10", class: "swatch", "aria-hidden": "true" });
  const line = shape("path", { d: "M0 5H20", fill: "none", "stroke-width": 2.4, "stroke-dasharray": series.dash || "none" });
  line.style.stroke = series.colour;
  svg.append(line);
  return svg;
}
