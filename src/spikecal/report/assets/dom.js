// What all parts share. Names from files may be anything, so text only ever enters through textContent.
const data = JSON.parse(document.getElementById("data").textContent);

// Okabe and Ito's colours, which people with colour-blindness can tell apart, without the two that fade on paper.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const VIRIDIS = [
  [68, 1, 84], [72, 40, 120], [62, 73, 137], [49, 104, 142], [38, 130, 142],
  [31, 158, 137], [53, 183, 121], [110, 206, 88], [181, 222, 43], [253, 231, 37],
];

/** An element with attributes and children; strings become text, null is left out. */
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

function known(value) {
  return value !== null && value !== undefined;
}

/** The largest of many numbers, which may be too many as arguments of Math.max. */
function largest(values, least = 0) {
  return values.reduce((most, value) => (known(value) && value > most ? value : most), least);
}

function percent(share, digits = 1) {
  if (!known(share)) return "–";
  const text = (100 * share).toFixed(digits);
  return share > 0 && Number(text) === 0 ? `< ${(0.1 ** digits).toFixed(digits)} %` : `${text} %`;
}

/** Three significant digits, in plain notation. */
function number(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}

/** When a layer that waits, or is behind one that does, emits its T steps, counted from the image's first. */
function windowText(of, row) {
  const wait = row.waits ? `waits ${row.waits} step${row.waits === 1 ? "" : "s"}, ` : "";
  return `${wait}emits in steps ${row.start + 1} to ${row.start + of.T}`;
}

/** Colour of a share in 0..1 on the heat scale, as [red, green, blue]. */
function heat(share) {
  const place = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const low = Math.min(VIRIDIS.length - 2, Math.floor(place));
  return VIRIDIS[low].map((from, i) => Math.round(from + (place - low) * (VIRIDIS[low + 1][i] - from)));
}

function rgb(colour) {
  return `rgb(${colour.join(" ")})`;
}

/** Black or white, whichever has more contrast (by WCAG) with [red, green, blue]; never less than 4.58. */
function readable(colour) {
  const [red, green, blue] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff";
}

/** Bytes out of base64. */
function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Paints `height` × `width` cells; `colour(row, column)` is [red, green, blue] or with opacity [r, g, b, a]. */
function paint(canvas, height, width, colour) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let row = 0, at = 0; row < height; row++) {
    for (let column = 0; column < width; column++, at += 4) {
      const [red, green, blue, opacity = 255] = colour(row, column);
      pixels.data[at] = red;
      pixels.data[at + 1] = green;
      pixels.data[at + 2] = blue;
      pixels.data[at + 3] = opacity;
    }
  }
  context.putImageData(pixels, 0, 0);
}

/** Horizontal bars with their labels: rows of [label, value], drawn against the largest one. */
function bars(rows, format) {
  const most = largest(rows.map(([, value]) => value), 1e-12);
  const box = el("div", { class: "bars" });
  for (const [label, value] of rows) {
    const bar = el("div", { class: "fill" });
    bar.style.width = `${(100 * (value ?? 0)) / most}%`;
    box.append(el("span", {}, label), el("div", { class: "track" }, bar), el("span", {}, format(value)));
  }
  return box;
}

/** Draws at once if the box is on the page, and again whenever its width changes. */
function responsive(box, draw) {
  let last = 0;
  const look = () => {
    const width = Math.floor(box.clientWidth);
    if (width > 0 && width !== last) {
      last = width;
      draw(width);
    }
  };
  new ResizeObserver(look).observe(box);
  look();
}

function options(select, entries, chosen) {
  select.replaceChildren(
    ...entries.map(([value, text]) => el("option", { value, selected: String(value) === String(chosen) }, text))
  );
}

// The selected network; every part that shows one listens.
const shown = { id: data.headline, listeners: [] };

function network() {
  return data.networks[shown.id];
}

function source(of = network()) {
  return data.sources[of.source];
}

function show(id) {
  shown.id = id;
  document.getElementById("shown").value = String(id);
  for (const listener of shown.listeners) listener();
}

/** The colours of `heat` from least to most, with their meaning. */
function heatScale(least, most) {
  const bar = el("canvas", { role: "img", "aria-label": "colour scale" });
  paint(bar, 1, 64, (row, column) => heat(column / 63));
  return [el("span", {}, least), bar, el("span", {}, most)];
}
