// Colour maps (matplotlib's viridis and magma, CC0, at 33 points) and the colours of models: distinct with any colour
// vision, and by their dashes.

const VIRIDIS = "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725";
const MAGMA = "0000040303120a0822130d341d114729115a36106b440f7651127c5d177f6a1c81762181832681902a819c2e7faa337db73779c43c75d0416fdc4869e75263ef5d5ef56b5cf9795dfc8961fd9869fea772feb67cfec488fed395fde2a3fcf0b2fcfdbf";

export const viridis = table(VIRIDIS);
export const magma = table(MAGMA);

// 256 colours as RGB bytes, linear between the points.
function table(points) {
  const bytes = points.match(/../g).map((pair) => parseInt(pair, 16));
  const last = bytes.length / 3 - 1;
  const colours = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * last;
    const low = Math.min(Math.floor(place), last - 1);
    for (let c = 0; c < 3; c++) {
      colours[3 * i + c] = Math.round(bytes[3 * low + c] + (place - low) * (bytes[3 * low + 3 + c] - bytes[3 * low + c]));
    }
  }
  return colours;
}

export const FAMILIES = {
  attention: "softmax attention",
  linear_attention: "linear attention",
  mamba2: "Mamba-2 scan",
  mamba1: "Mamba-1 scan",
  gated_conv: "gated convolution",
  other: "other mixer",
};
const OWN = { attention: "blue", mamba2: "vermilion", linear_attention: "green", gated_conv: "orange" };
const OTHERS = ["purple", "sky", "green", "orange", "vermilion", "blue"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];

// The first of a family has the family's colour, as in reports; the rest take what is left.
export function seriesOf(models) {
  const taken = new Set();
  return models.map((model, index) => {
    const own = OWN[model.family];
    const name = own && !taken.has(own) ? own : OTHERS.find((colour) => !taken.has(colour));
    taken.add(name);
    return { colour: `var(--${name})`, name, dash: DASHES[index] };
  });
}
