// The details of a row in the table of layers, built when it is opened.
function layerDetail(of, row) {
  const panels = [histogramPanel(of, row), stepsPanel(row), partsPanel(of, row), channelsPanel(row), factsPanel(of, row)];
  return el("div", { class: "detail-inner" }, panels.filter(Boolean));
}

function panel(title, ...content) {
  return el("div", {}, el("h4", {}, title), ...content);
}

const KINDS = {
  neurons: "A layer of integrate-and-fire neurons.",
  "signed neurons": "A linear value that weights read, as positive and negative spikes of signed neurons.",
  joint: "No neurons: an output, or a value that several layers read.",
};

function histogramPanel(of, row) {
  const all = source(of).histograms;
  const found = Object.hasOwn(all, row.name) ? all[row.name] : null; // a layer may be called "constructor"
  if (!found) {
    return row.kind !== "joint" ? panel("Activations", el("p", {}, "This file has no histogram of the layer.")) : null;
  }
  const box = el("div");
  responsive(box, (width) => box.replaceChildren(histogram(found, row.threshold, width)));
  const said = row.threshold
    ? `The line is the threshold, ${number(row.threshold[0])} on average` +
      (row.threshold[2] > row.threshold[1]
        ? `; the band shows those of the channels, ${number(row.threshold[1])} to ${number(row.threshold[2])}.`
        : ".")
    : "";
  return panel(
    `${row.kind === "signed neurons" ? "Magnitudes of the values" : "Activations"} of the original, calibration images`,
    box,
    el("p", { class: "hint" }, `${percent(found.zeros)} are zero and not drawn; the largest is ${number(found.maximum)}. Heights are logarithmic. ${said}`)
  );
}

function histogram(found, threshold, width) {
  const height = 130;
  const bottom = height - 20;
  const most = Math.max(found.maximum, threshold ? threshold[2] : 0) || 1;
  const x = (value) => (value / most) * (width - 2) + 1;
  const tallest = Math.log1p(Math.max(1, ...found.counts));
  const picture = svg("svg", { width, height, role: "img", "aria-label": `Histogram up to ${number(found.maximum)}` });
  if (threshold && threshold[2] > threshold[1]) {
    picture.append(svg("rect", {
      x: x(threshold[1]), y: 0, width: x(threshold[2]) - x(threshold[1]), height: bottom, fill: "#e69f00", opacity: 0.22,
    }));
  }
  found.counts.forEach((count, i) => {
    const tall = (Math.log1p(count) / tallest) * (bottom - 6);
    const left = x(i * found.width);
    const right = Math.min(width, x((i + 1) * found.width));
    const bar = svg("rect", { x: left, y: bottom - tall, width: Math.max(0.5, right - left - 0.7), height: tall });
    bar.style.fill = "var(--bar)";
    picture.append(bar);
  });
  if (threshold) {
    picture.append(svg("line", { x1: x(threshold[0]), x2: x(threshold[0]), y1: 0, y2: bottom, stroke: "#d55e00", "stroke-width": 2.5 }));
  }
  picture.append(
    svg("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }),
    svg("text", { x: 0, y: height - 4 }, "0"),
    svg("text", { x: width, y: height - 4, "text-anchor": "end" }, number(most))
  );
  return picture;
}

function stepsPanel(row) {
  if (!row.steps) return null;
  const rows = row.steps.map(([label, value]) => [label === "before" ? "before" : `after ${label}`, value]);
  return panel(
    "Relative error, calibration images",
    bars(rows, number),
    rows.length === 1 ? el("p", { class: "hint" }, "Nothing was calibrated here.") : null
  );
}

function partsPanel(of, row) {
  if (!row.parts) return null;
  // without calibrated weights, that part is just rounding
  const rows = row.parts.filter(([name, value]) => name !== "weights" || value > 1e-9);
  const what = row.kind !== "joint"
    ? "Input: errors of earlier layers; unevenness: spikes that come early or late."
    : "Input: errors of earlier layers; calibration: what it changed here to make up for them.";
  return panel(
    `Where the error comes from, ${source(of).errors_on} test images`,
    bars(rows, number),
    el("p", { class: "hint" }, `Squared and relative to the layer's values; in total ${number(row.error)}. ${what} ` +
      "Parts may cancel, so they need not add up.")
  );
}

function channelsPanel(row) {
  const found = row.channels;
  if (!found) return null;
  const box = el("div");
  responsive(box, (width) => box.replaceChildren(rates(found, width)));
  const silent = found.silent
    ? `${found.silent} of ${found.count} channels never fire: ${found.silent_first.join(", ")}${found.silent > found.silent_first.length ? ", …" : ""}.`
    : `All ${found.count} channels fire.`;
  const some = found.index.length < found.count ? ` ${found.index.length} of them are drawn.` : "";
  return panel("Firing rates of the channels, highest first", found.index.length ? box : null, el("p", { class: "hint" }, silent + some));
}

function rates(found, width) {
  const height = 110;
  const bottom = height - 4;
  const most = Math.max(...found.rate, 1e-9);
  const each = (width - 2) / found.rate.length;
  const picture = svg("svg", { width, height, role: "img", "aria-label": `Channel rates from ${percent(most)} down to ${percent(found.rate.at(-1))}` });
  found.rate.forEach((rate, i) => {
    const tall = (rate / most) * (bottom - 18);
    const bar = svg("rect", { x: 1 + i * each, y: bottom - tall, width: Math.max(0.5, each - 0.8), height: Math.max(tall, 0.5) },
      svg("title", {}, `channel ${found.index[i]}: ${percent(rate)}`));
    bar.style.fill = "var(--bar-strong)";
    picture.append(bar);
  });
  picture.append(svg("text", { x: 1, y: 11 }, `${percent(most)} of steps`));
  return picture;
}

function factsPanel(of, row) {
  const notes = row.notes ?? [];
  const stage = source(of).graph.nodes.find((node) => node.name === row.name);
  return panel(
    "Layer",
    el("p", {}, row.name),
    stage && stage.what ? el("p", {}, stage.what) : null,
    el("p", {}, KINDS[row.kind]),
    known(row.start) ? el("p", {}, `This layer ${windowText(of, row)}.`) : null,
    ...notes.map((note) => el("p", {}, note))
  );
}
