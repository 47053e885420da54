// Values as pictures on canvases.

const cell = document.createElement("canvas");

// A canvas in the shape of an image, so many pixels on its longer side; the style sheet keeps tall ones narrow.
export function shapeLike(canvas, image, side) {
  if (!image) return;
  const longer = Math.max(image.width, image.height);
  const [width, height] = [image.width, image.height].map((own) => Math.max(1, Math.round((side * own) / longer)));
  if (canvas.width === width && canvas.height === height) return;
  Object.assign(canvas, { width, height }).style.setProperty("--aspect", width / height);
}

// A small picture of h x w cells, blown up without smoothing.
function paintCells(context, width, height, colourAt, alpha = 1) {
  cell.width = width;
  cell.height = height;
  const small = cell.getContext("2d");
  const picture = small.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const [red, green, blue] = colourAt(i);
    picture.data.set([red, green, blue, 255], 4 * i);
  }
  small.putImageData(picture, 0, 0);
  context.imageSmoothingEnabled = false;
  context.globalAlpha = alpha;
  context.drawImage(cell, 0, 0, context.canvas.width, context.canvas.height);
  context.globalAlpha = 1;
}

// Values (h, w) between low and high in a colour map, perhaps over the image.
export function drawHeat(canvas, { shape, values }, { colours, low, high, image = null }) {
  const context = canvas.getContext("2d");
  const span = high > low ? high - low : 1;
  drawGround(context, image, "grayscale(1)"); // so that the hue is the map's alone
  paintCells(context, shape[1], shape[0], (i) => {
    const share = Math.max(0, Math.min(1, (values[i] - low) / span));
    const place = 3 * Math.round(255 * share);
    return [colours[place], colours[place + 1], colours[place + 2]];
  }, image ? 0.62 : 1);
}

// Bytes (h, w, 3) as they are; cells outside `shown` stay dark.
export function drawColours(canvas, { shape, values }, shown) {
  const context = canvas.getContext("2d");
  paintCells(context, shape[1], shape[0], (i) => (shown[i] ? values.subarray(3 * i, 3 * i + 3) : [24, 24, 28]));
}

// Bytes (n, n) in a colour map; large matrices are drawn smoothly, small ones in cells.
export function drawShades(canvas, { shape, values }, colours) {
  paintCells(canvas.getContext("2d"), shape[1], shape[0], (i) => colours.subarray(3 * values[i], 3 * values[i] + 3));
}

export function drawGround(context, image, filter = "none") {
  const { width, height } = context.canvas;
  context.clearRect(0, 0, width, height);
  if (!image) return;
  context.imageSmoothingEnabled = true;
  context.filter = filter;
  context.drawImage(image, 0, 0, width, height);
  context.filter = "none";
}

// A frame around one cell, seen on dark and on light.
export function markCell(canvas, row, column, grid) {
  const context = canvas.getContext("2d");
  const [high, wide] = [canvas.height / grid[0], canvas.width / grid[1]];
  const box = [column * wide, row * high, wide, high];
  const line = Math.max(2, Math.max(canvas.width, canvas.height) / 160);
  context.lineWidth = 2.2 * line;
  context.strokeStyle = "rgba(0, 0, 0, .85)";
  context.strokeRect(...box);
  context.lineWidth = line;
  context.strokeStyle = "#ffffff";
  context.strokeRect(...box);
}

// A line across the matrix at one token.
export function markLine(canvas, share, sense) {
  const context = canvas.getContext("2d");
  const place = share * canvas.width;
  for (const [width, colour] of [[4, "rgba(0, 0, 0, .7)"], [1.6, "#ffffff"]]) {
    context.lineWidth = width;
    context.strokeStyle = colour;
    context.beginPath();
    if (sense === "row") context.moveTo(0, place), context.lineTo(canvas.width, place);
    else context.moveTo(place, 0), context.lineTo(place, canvas.height);
    context.stroke();
  }
}

// The mask as a veil with an edge: foreground tinted, ignored pixels grey.
export function drawMask(context, mask) {
  const { side, values } = mask;
  cell.width = cell.height = side;
  const small = cell.getContext("2d");
  const picture = small.createImageData(side, side);
  for (let i = 0; i < values.length; i++) {
    if (values[i] === 0) continue;
    const edge = values[i] === 1 && (i % side === 0 || i % side === side - 1 || i < side || i >= side * (side - 1)
      || values[i - 1] === 0 || values[i + 1] === 0 || values[i - side] === 0 || values[i + side] === 0);
    picture.data.set(edge ? [255, 255, 255, 235] : values[i] === 1 ? [230, 60, 180, 90] : [128, 128, 128, 150], 4 * i);
  }
  small.putImageData(picture, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(cell, 0, 0, context.canvas.width, context.canvas.height);
}

export function drawLegend(canvas, colours) {
  const context = canvas.getContext("2d");
  const picture = context.createImageData(canvas.width, 1);
  for (let i = 0; i < canvas.width; i++) {
    const place = 3 * Math.round((255 * i) / (canvas.width - 1));
    picture.data.set([colours[place], colours[place + 1], colours[place + 2], 255], 4 * i);
  }
  context.putImageData(picture, 0, 0);
}

export function saveCanvas(canvas, name) {
  canvas.toBlob((blob) => saveBlob(blob, name));
}

export function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export function percent(share) {
  const value = 100 * share;
  return `${value >= 10 || value === 0 ? Math.round(value) : value.toPrecision(2)}\u00a0%`;
}

// Short figures: three digits, and powers of ten where they say more.
export function short(value) {
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e4 || size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replaceAll("-", "−").replace("e+", "e");
}
