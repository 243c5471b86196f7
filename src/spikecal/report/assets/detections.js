// Findings of the analog and the spiking detector in the same image, the spiking one stopped after some steps.
const scene = { image: 0, stop: Infinity, least: 0.5, truth: false };
const OVERLAP = 0.5; // IoU from which two boxes match
const LETTER = 3.8; // width of a letter in a box, in units of its lines

function drawDetections(body) {
  const render = () => {
    body.replaceChildren();
    if (network().found) body.append(...sceneParts());
    else body.append(el("p", {}, `No images were run through ${network().label} as a detector.`));
  };
  shown.listeners.push(render);
  render();
}

function sceneParts() {
  const of = network();
  const set = data.scenes.sources[of.source];
  scene.image = Math.min(scene.image, of.found.length - 1);
  // the stop that was looked at, or the nearest before it
  scene.stop = of.stops.findLast((step) => step <= scene.stop) ?? of.stops[0];
  const pair = el("div", { class: "scenes" });
  const line = el("p", { class: "answer", id: "detected", "aria-live": "polite" });
  const refresh = () => drawPair(pair, line, of, set);
  refresh();
  return [
    pictures(of, set, refresh), stopSlider(of, refresh), line, pair, classLegend(set),
    el("div", { class: "row" }, scoreSlider(refresh), truthBox(refresh)),
    el("p", { class: "hint" }, "Dashed boxes are found by only one of the two: no box of the same class overlaps them by " +
      "half in the other. Point at a box to read its score."),
  ];
}

function pictures(of, set, refresh) {
  const choices = set.images.slice(0, of.found.length).map((image, i) => {
    const input = el("input", { type: "radio", name: "scene", value: i, checked: i === scene.image, onchange: () => {
      scene.image = i;
      refresh();
    } });
    return el("label", {}, input, el("img", { src: data.scenes.pictures[image.picture], alt: "" }), `image ${i + 1}`);
  });
  return el("fieldset", { class: "thumbs photos", "aria-label": "Image with detections" }, choices);
}

function stopSlider(of, refresh) {
  const count = el("output", { for: "stop" });
  const tell = () => {
    count.textContent = `step ${scene.stop} of ${of.T}`;
    slider.setAttribute("aria-valuetext", count.textContent);
  };
  const slider = el("input", {
    type: "range", min: 0, max: of.stops.length - 1, value: of.stops.indexOf(scene.stop), id: "stop",
    oninput: () => {
      scene.stop = of.stops[Number(slider.value)];
      tell();
      refresh();
    },
  });
  tell();
  return el("div", { class: "stepper" }, el("label", { for: "stop" }, "Steps"), slider, count);
}

function scoreSlider(refresh) {
  const value = el("output", { for: "least" }, scene.least.toFixed(2));
  const slider = el("input", {
    type: "range", min: data.scenes.least, max: 0.95, step: 0.05, value: scene.least, id: "least",
    oninput: () => {
      scene.least = Number(slider.value);
      value.textContent = scene.least.toFixed(2);
      refresh();
    },
  });
  return el("div", { class: "score" }, el("label", { for: "least" }, "Score at least"), slider, value);
}

function truthBox(refresh) {
  const box = el("input", { type: "checkbox", id: "truth", checked: scene.truth, onchange: () => {
    scene.truth = box.checked;
    refresh();
  } });
  return el("label", { for: "truth" }, box, " show the true boxes");
}

function classTitle(set, label) {
  return set.classes[label] ?? `class ${label}`;
}

function classColour(set, label) {
  return PALETTE[Math.max(0, Object.keys(set.classes).indexOf(String(label))) % PALETTE.length];
}

function classLegend(set) {
  const labels = new Set(set.images.flatMap((image) => [...image.analog, ...image.truth].map((box) => box[4])));
  const list = el("ul", { class: "legend", "aria-label": "Classes" });
  for (const label of [...labels].sort((a, b) => a - b)) {
    const mark = el("span", { class: "swatch" });
    mark.style.borderTopColor = classColour(set, label);
    list.append(el("li", {}, mark, ` ${classTitle(set, label)}`));
  }
  return list;
}

function drawPair(pair, line, of, set) {
  const image = set.images[scene.image];
  const enough = (boxes) => boxes.filter((box) => box[5] >= scene.least);
  const analog = enough(image.analog);
  const spiking = enough(of.found[scene.image][of.stops.indexOf(scene.stop)]);
  const both = pairUp(spiking, analog);
  const more = spiking.length - both.size;
  Object.assign(line.dataset, { both: both.size, missed: analog.length - both.size, more });
  line.replaceChildren(
    `After ${scene.stop} ${scene.stop === 1 ? "step" : "steps"} it finds `, el("b", {}, `${both.size} of the ${analog.length}`),
    ` that the original finds${more ? `, and ${more} more` : ""}. `,
    el("small", {}, `true boxes: ${image.truth.length}`)
  );
  const truth = scene.truth ? image.truth : [];
  const again = new Set(both.values());
  pair.replaceChildren(
    sceneFigure(set, image, analog, again, truth, `Original: ${analog.length} found`),
    sceneFigure(set, image, spiking, both, truth, `Spiking body, after step ${scene.stop}: ${spiking.length} found`)
  );
}

/** The box of `wanted` that each found one matches: same class, overlap of half; the highest score chooses first. */
function pairUp(found, wanted) {
  const pairs = new Map();
  const free = new Set(wanted);
  for (const box of found) {
    let best = null;
    let most = OVERLAP;
    for (const other of free) {
      const share = other[4] === box[4] ? overlap(box, other) : 0;
      if (share >= most) [best, most] = [other, share];
    }
    if (best) {
      pairs.set(box, best);
      free.delete(best);
    }
  }
  return pairs;
}

function overlap(a, b) {
  const width = Math.min(a[2], b[2]) - Math.max(a[0], b[0]);
  const height = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
  if (width <= 0 || height <= 0) return 0;
  const area = (box) => (box[2] - box[0]) * (box[3] - box[1]);
  return (width * height) / (area(a) + area(b) - width * height);
}

/** The image with boxes on it; those in `solid` are found by the other detector, too. */
function sceneFigure(set, image, boxes, solid, truth, caption) {
  const picture = svg("svg", { viewBox: `0 0 ${image.width} ${image.height}`, role: "img", "aria-label": caption });
  picture.append(svg("image", { href: data.scenes.pictures[image.picture], width: image.width, height: image.height }));
  const unit = Math.max(image.width, image.height) / 250; // lines look the same on images of any size
  for (const box of truth) picture.append(outline(box, { class: "true", "stroke-width": unit }));
  for (const box of boxes) {
    const line = { stroke: classColour(set, box[4]), "stroke-width": 1.2 * unit };
    if (!solid.has(box)) line["stroke-dasharray"] = `${4 * unit} ${3 * unit}`;
    const name = classTitle(set, box[4]);
    const fits = box[2] - box[0] > name.length * LETTER * unit;
    picture.append(svg("g", { class: "box" },
      svg("title", {}, `${name}, score ${box[5].toFixed(2)}`),
      outline(box, { class: "casing", "stroke-width": 2.4 * unit }), outline(box, line),
      fits ? svg("text", { x: box[0] + 1.5 * unit, y: box[1] + 6 * unit, "font-size": 5.5 * unit }, name) : null));
  }
  return el("figure", {}, picture, el("figcaption", {}, caption));
}

function outline([x0, y0, x1, y1], attributes) {
  return svg("rect", { x: x0, y: y0, width: Math.max(1, x1 - x0), height: Math.max(1, y1 - y0), fill: "none", ...attributes });
}
