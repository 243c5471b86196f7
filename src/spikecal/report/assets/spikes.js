// One image through one network: the answer forming step by step, and which neurons fire when.
const spikes = { image: 0, layer: 0, step: null, timer: null };

function drawSpikes(body) {
  if (!data.networks.some((n) => n.traces)) {
    body.append(el("p", {}, "No images were run for this page, so there are no spikes to show. Give some with --data."));
    return;
  }
  const render = () => {
    stop();
    body.replaceChildren();
    if (network().traces) body.append(...spikeParts());
    else body.append(el("p", {}, `No images were run through ${network().label}.`));
  };
  shown.listeners.push(render);
  render();
}

function stop() {
  clearInterval(spikes.timer);
  spikes.timer = null;
}

function spikeParts() {
  const of = network();
  const set = data.sets[of.set];
  spikes.image = Math.min(spikes.image, of.traces.length - 1);
  spikes.step = Math.min(spikes.step ?? of.T, of.T);
  const neurons = of.layers.filter((row) => row.kind !== "joint");
  spikes.layer = Math.min(spikes.layer, Math.max(0, neurons.length - 1));
  const view = { of, set, neurons, update: [] };
  const panels = el("div");
  const rebuild = () => {
    view.trace = of.traces[spikes.image];
    view.update = [];
    panels.replaceChildren(...[answerLine(view), spikePanels(view)].filter(Boolean));
    refresh(view);
  };
  const own = of.waiting
    ? el("p", { class: "hint" }, "Layers wait in this network: step 1 of each layer is the first in which it may fire.")
    : null;
  const parts = [thumbs(view, rebuild), stepper(view), own, panels].filter(Boolean);
  rebuild();
  return parts;
}

function refresh(view) {
  view.slider.value = spikes.step;
  const late = view.of.waiting ? `, latency ${spikes.step + view.of.latency - view.of.T}` : "";
  const said = `step ${spikes.step} of ${view.of.T}${late}`;
  view.slider.setAttribute("aria-valuetext", said);
  view.count.textContent = said;
  for (const update of view.update) update(spikes.step);
}

function className(set, index) {
  return set.classes[index] ?? `class ${index}`;
}

function thumbs(view, rebuild) {
  const choices = view.set.images.slice(0, view.of.traces.length).map((image, i) => {
    const truth = known(image.label) ? className(view.set, image.label) : `image ${i + 1}`;
    const answers = view.of.traces[i].answers;
    const wrong = answers && known(image.label) && answers.at(-1) !== image.label;
    const input = el("input", { type: "radio", name: "image", value: i, checked: i === spikes.image, onchange: () => {
      spikes.image = i;
      rebuild();
    } });
    const picture = image.picture ? el("img", { src: image.picture, alt: "" }) : el("span", { class: "blank" });
    return el("label", { class: wrong ? "wrong" : null }, input, picture, wrong ? `${truth} ✗` : truth);
  });
  return el("fieldset", { class: "thumbs", "aria-label": "Image" }, choices);
}

function stepper(view) {
  view.slider = el("input", {
    type: "range", min: 1, max: view.of.T, value: spikes.step, id: "step", "aria-label": "Time step",
    oninput: () => {
      stop();
      spikes.step = Number(view.slider.value);
      refresh(view);
    },
  });
  view.count = el("output", { for: "step" });
  const play = el("button", { type: "button" }, "Play");
  play.addEventListener("click", () => {
    if (spikes.timer) {
      stop();
      play.textContent = "Play";
      return;
    }
    if (spikes.step >= view.of.T) spikes.step = 0;
    play.textContent = "Pause";
    const advance = () => {
      spikes.step = Math.min(view.of.T, spikes.step + 1);
      refresh(view);
      if (spikes.step >= view.of.T) {
        stop();
        play.textContent = "Play";
      }
    };
    spikes.timer = setInterval(advance, Math.max(60, Math.min(350, 9000 / view.of.T)));
    advance();
  });
  view.slider.addEventListener("input", () => (play.textContent = "Play"));
  return el("div", { class: "stepper" }, play, view.slider, view.count);
}

/** The answer at this step beside the original's and the true one. */
function answerLine(view) {
  const { trace, set } = view;
  if (!trace.answers) return el("p", { class: "hint" }, source(view.of).detector
    ? "The body gives feature maps; the detections are shown above."
    : "This network gives no classes, so there is no answer to watch.");
  const label = set.images[spikes.image].label;
  const line = el("p", { class: "answer", id: "answer" });
  view.update.push((step) => {
    const answer = trace.answers[step - 1];
    let since = step;
    while (since > 1 && trace.answers[since - 2] === answer) since--;
    const target = known(label) ? label : trace.ann;
    const kind = !known(target) ? "" : answer === target ? "ok" : "not";
    const beside = [since < step ? `unchanged since step ${since}` : "new at this step"];
    if (known(trace.ann)) beside.push(`original: ${className(set, trace.ann)}`);
    if (known(label)) beside.push(`true: ${className(set, label)}`);
    line.dataset.answer = answer;
    line.replaceChildren(
      "It says ", el("b", { class: kind }, className(set, answer)), kind === "ok" ? " ✓" : kind === "not" ? " ✗" : "",
      " ", el("small", {}, beside.join(" · "))
    );
  });
  return line;
}

function spikePanels(view) {
  const panels = el("div", { class: "panels" });
  if (view.trace.answers) panels.append(classPanel(view));
  if (view.trace.activity) {
    const pick = [];
    panels.append(activityPanel(view, pick), layerPanel(view, pick));
  }
  return panels;
}

function classPanel(view) {
  const { trace, set } = view;
  const all = trace.values.flat();
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  // three digits of the largest, with equally many decimals for all
  const digits = Math.min(8, Math.max(0, 2 - Math.floor(Math.log10(Math.max(-low, high) || 1))));
  const place = (value) => (100 * (value - low)) / (high - low || 1);
  const grid = el("div", { class: "classes" });
  const label = set.images[spikes.image].label;
  const rows = trace.classes.map((index, i) => {
    const marks = (index === trace.ann ? " ◇" : "") + (index === label ? " ●" : "");
    const row = {
      name: el("span", { class: "name" }, className(set, index) + marks), bar: el("div", { class: "fill" }),
      value: el("span", { class: "value" }), zero: el("div", { class: "zero" }), values: trace.values[i], index,
    };
    row.zero.style.left = `${place(0)}%`;
    grid.append(row.name, el("div", { class: "track" }, row.bar, row.zero), row.value);
    return row;
  });
  view.update.push((step) => {
    for (const row of rows) {
      const value = row.values[step - 1];
      row.bar.style.left = `${Math.min(place(0), place(value))}%`;
      row.bar.style.width = `${Math.abs(place(value) - place(0))}%`;
      row.value.textContent = value.toFixed(digits);
      for (const part of [row.name, row.bar]) part.classList.toggle("top-one", row.index === trace.answers[step - 1]);
    }
  });
  const keys = [known(trace.ann) ? "◇ the original’s answer" : null, known(label) ? "● the true one" : null].filter(Boolean);
  return el("div", {}, el("h3", {}, "Output so far"), grid,
    el("p", { class: "hint" }, `Running mean of the output current. ${keys.join(", ")}`));
}

/** All layers over all steps: how many of their neurons fire. */
function activityPanel(view, pick) {
  const { of, neurons, trace } = view;
  const levels = bytes(trace.activity);
  const share = (layer, step) => (levels[layer * of.T + step] / 255) ** 2;
  const most = largest(levels, 1e-9) / 255;
  const canvas = el("canvas", { role: "img", "aria-label": "Activity of the layers over the steps" });
  paint(canvas, neurons.length, of.T, (layer, step) => heat(levels[layer * of.T + step] / 255 / most));
  const tall = Math.max(3, Math.min(16, Math.floor(340 / neurons.length)));
  canvas.style.height = `${tall * neurons.length}px`;
  const now = el("div", { class: "now" });
  const here = el("div", { class: "here" });
  const over = el("div", { class: "over" }, canvas, here, now);
  const readout = el("p", { class: "hint" });
  const tell = () => {
    readout.textContent = neurons.length
      ? `${neurons[spikes.layer].name}, step ${spikes.step}: about ${percent(share(spikes.layer, spikes.step - 1))} of its neurons fire. ` +
        `First layer on top, steps to the right; yellow is ${percent(most ** 2)}.`
      : "";
  };
  view.update.push((step) => {
    now.style.left = `${(100 * (step - 1)) / of.T}%`;
    now.style.width = `${100 / of.T}%`;
    here.style.top = `${spikes.layer * tall}px`;
    here.style.height = `${tall}px`;
    tell();
  });
  over.addEventListener("pointerdown", (event) => {
    const area = canvas.getBoundingClientRect();
    const step = 1 + Math.floor(((event.clientX - area.left) / area.width) * of.T);
    spikes.step = Math.min(of.T, Math.max(1, step));
    spikes.layer = Math.min(neurons.length - 1, Math.max(0, Math.floor((event.clientY - area.top) / tall)));
    for (const listener of pick) listener();
    refresh(view);
  });
  const legend = el("p", { class: "scale", id: "activity-scale" }, heatScale("0 %", `${percent(most ** 2)} of a layer's neurons fire`));
  return el("div", {}, el("h3", {}, "Activity of all layers"), over, legend, readout);
}

/** One layer: when some of its neurons fire, and where. */
function layerPanel(view, pick) {
  const { neurons } = view;
  const inside = el("div", { class: "inside" });
  const select = el("select", { id: "raster-layer", onchange: () => {
    spikes.layer = Number(select.value);
    build();
    refresh(view);
  } });
  options(select, neurons.map((row, i) => [i, row.name]), spikes.layer);
  let updates = [];
  const build = () => {
    updates = [];
    select.value = String(spikes.layer);
    inside.replaceChildren(...[raster(view, updates), maps(view, updates)].filter(Boolean));
  };
  build();
  pick.push(build);
  view.update.push((step) => updates.forEach((update) => update(step)));
  return el("div", { class: "whole" }, el("h3", {}, el("label", { for: "raster-layer" }, "Neurons of "), select), inside);
}

function raster(view, updates) {
  const { of, trace } = view;
  const found = trace.raster[spikes.layer];
  const bits = bytes(found.bits);
  const wide = Math.ceil(of.T / 8);
  const fires = (row, step) => (bits[row * wide + (step >> 3)] >> (7 - (step & 7))) & 1;
  const canvas = el("canvas", { role: "img", "aria-label": `Spikes of ${found.rows} neurons` });
  canvas.style.height = `${Math.max(48, found.rows * 3)}px`;
  updates.push((step) => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const ink = dark ? [108, 189, 240] : [0, 95, 150];
    paint(canvas, found.rows, of.T, (row, t) => {
      if (fires(row, t)) return t < step ? ink : [...ink, 60];
      return t === step - 1 ? [...ink, 34] : [0, 0, 0, 0];
    });
  });
  return el("div", {}, canvas, el("p", { class: "hint" },
    `${found.rows} of ${found.of.toLocaleString("en")} evenly spaced neurons, one row each; steps to the right, future ones are faint.`));
}

function maps(view, updates) {
  const { of, set, trace } = view;
  const found = trace.maps?.[spikes.layer];
  if (!found) return null;
  const { height, width } = found;
  const cells = bytes(found.cells);
  const each = Math.ceil((height * width) / 2);
  // half a byte per cell: the square root of the share of channels that fire there
  const share = (step, cell) => (((cells[step * each + (cell >> 1)] >> (cell & 1 ? 0 : 4)) & 15) / 15) ** 2;
  const total = new Float64Array(height * width);
  for (let step = 0; step < of.T; step++) for (let i = 0; i < total.length; i++) total[i] += share(step, i);
  const most = largest(total, 1e-9) / of.T;
  const [now, mean] = [el("canvas", { role: "img", "aria-label": "Where neurons fire now" }), el("canvas", { role: "img", "aria-label": "Where neurons fired so far" })];
  updates.push((step) => {
    const sum = new Float64Array(height * width);
    for (let t = 0; t < step; t++) for (let i = 0; i < sum.length; i++) sum[i] += share(t, i);
    paint(now, height, width, (row, column) => heat(share(step - 1, row * width + column) / Math.min(1, 2 * most)));
    paint(mean, height, width, (row, column) => heat(sum[row * width + column] / step / most));
  });
  const picture = set.images[spikes.image].picture;
  return el("div", { class: "maps" },
    picture ? el("figure", {}, el("img", { src: picture, alt: "" }), el("figcaption", {}, "the image")) : null,
    el("figure", {}, now, el("figcaption", {}, "firing at this step")),
    el("figure", {}, mean, el("figcaption", {}, "mean so far")));
}
