// Accuracy over steps: one curve per network, the original's line, and a read-out for pointer and keyboard.
function drawAccuracy(body) {
  const curves = data.networks.filter((n) => known(n.score) || known(n.agreement)).map(toCurve);
  if (!curves.length) {
    body.append(el("p", {}, "These networks have not been measured, so there is no curve. Give images with --data."));
    return;
  }
  hideCrowd(curves);
  const steps = Math.max(...curves.map((c) => c.late + c.T));
  let step = steps;
  const stage = el("div", { class: "chart" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const slider = el("input", {
    type: "range", min: 1, max: steps, value: step, id: "chart-step",
    oninput: () => move(Number(slider.value)),
  });
  let mark = null;

  function draw(width) {
    const drawn = plot(curves.filter((c) => c.visible), width, steps);
    mark = drawn.mark;
    stage.replaceChildren(drawn.picture);
    const follow = (event) => move(drawn.stepAt(event.clientX - drawn.picture.getBoundingClientRect().left));
    drawn.picture.addEventListener("pointermove", follow);
    drawn.picture.addEventListener("pointerdown", follow);
    move(step);
  }

  function move(to) {
    step = Math.min(steps, Math.max(1, to));
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step}`);
    if (mark) mark(step);
    readout.replaceChildren(
      el("b", {}, `Step ${step}`),
      ...curves.filter((c) => c.visible).map((c) => {
        const t = step - c.late; // of its output
        const value = c.values[t - 1];
        const ended = t > c.T ? `ended, ${percent(c.last)}` : t === c.T ? percent(c.last) : t < 1 ? "not yet" : "–";
        const text = known(value) ? percent(value) : ended;
        const own = c.late > 0 && t >= 1 && t <= c.T ? ` after ${t} of its ${c.T}` : "";
        return el("span", {}, swatch(c), ` ${c.label} `, el("b", {}, text), own);
      }),
      ...originals(curves).map((share) => el("span", {}, "original ", el("b", {}, percent(share))))
    );
  }

  const late = curves.some((c) => c.late > 0)
    ? " Steps count from the first of the image: if layers wait, the output and its curve begin later."
    : "";
  const agreement = curves.some((c) => c.measure === "agreement");
  body.append(
    el("p", { class: "hint" }, (agreement
      ? "Without labels: agreement with the original after every step."
      : curves.every((c) => c.measure === "map")
        ? "Mean average precision at the end of each network's steps."
      : curves.some((c) => c.values.length)
        ? "How often the answer is right if the run stops after a step. Each network is made for its last step."
        : "How often the answer was right at conversion, after all steps.") + late),
    legend(curves, () => draw(Math.floor(stage.clientWidth))), stage, slider,
    el("label", { for: "chart-step", class: "hint" }, "Step to read the curves at"), readout
  );
  responsive(stage, draw);
}

/** A curve's colour is its file's if there are several files, else its own; dashes tell the T of one file apart. */
function toCurve(n) {
  const among = data.networks.filter((other) => other.source === n.source).indexOf(n);
  const last = known(n.score) ? n.score : n.agreement;
  return {
    id: n.id, T: n.T, late: n.latency - n.T, label: n.label, source: n.source, measure: n.measure, ann: n.ann, last,
    values: n.curve ?? [], visible: true,
    colour: PALETTE[(data.several ? n.source : among) % PALETTE.length],
    dash: DASHES[(data.several ? among : Math.floor(among / PALETTE.length)) % DASHES.length],
  };
}

/** More than eight curves are a thicket: then only the longest of each file is drawn until others are selected. */
function hideCrowd(curves) {
  if (curves.length <= 8) return;
  for (const curve of curves) {
    curve.visible = curves.every((other) => other.source !== curve.source || other.T <= curve.T);
    if (curve.visible) curve.dash = "";
  }
}

function originals(curves) {
  const found = curves.filter((c) => known(c.ann) && c.measure !== "agreement").map((c) => c.ann);
  return [...new Set(found)];
}

function swatch(curve) {
  const line = el("span", { class: "swatch" });
  line.style.borderTopColor = curve.colour;
  if (curve.dash) line.style.borderTopStyle = "dashed";
  return line;
}

function legend(curves, redraw) {
  const list = el("ul", { class: "legend", "aria-label": "Curves shown" });
  for (const curve of curves) {
    const button = el("button", { type: "button", "aria-pressed": String(curve.visible) }, swatch(curve), curve.label);
    button.addEventListener("click", () => {
      curve.visible = !curve.visible;
      button.setAttribute("aria-pressed", String(curve.visible));
      redraw();
    });
    list.append(el("li", {}, button));
  }
  return list;
}

function plot(curves, width, steps) {
  const height = width < 500 ? 240 : 320;
  const edge = { left: 52, right: 16, top: 14, bottom: 34 };
  const lines = originals(curves);
  const all = [...curves.flatMap((c) => [...c.values, c.last]), ...lines];
  const { low, high, unit } = scaleOf(all);
  const x = (t) => edge.left + ((t - 1) / Math.max(1, steps - 1)) * (width - edge.left - edge.right);
  const y = (v) => height - edge.bottom - ((v - low) / (high - low || 1)) * (height - edge.top - edge.bottom);
  const picture = svg("svg", { width, height, role: "img", "aria-label": describe(curves, lines) });
  for (let value = low; value <= high + 1e-9; value += unit) {
    picture.append(
      svg("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(value), y2: y(value) }),
      svg("text", { x: edge.left - 8, y: y(value) + 4, "text-anchor": "end" }, `${(100 * value).toFixed(unit < 0.01 ? 1 : 0)} %`)
    );
  }
  for (const t of ticks(steps, width)) {
    picture.append(svg("text", { x: x(t), y: height - edge.bottom + 18, "text-anchor": "middle" }, String(t)));
  }
  const axis = curves.some((c) => c.late > 0) ? "latency in steps" : "steps";
  picture.append(svg("text", { x: width - edge.right, y: height - 3, "text-anchor": "end" }, axis));
  for (const share of lines) {
    picture.append(svg("line", { class: "rule", x1: edge.left, x2: width - edge.right, y1: y(share), y2: y(share) }));
    picture.append(svg("text", { class: "strong", x: edge.left + 6, y: y(share) - 5 }, `original ${percent(share)}`));
  }
  for (const curve of curves) picture.append(...line(curve, x, y));
  const rule = svg("line", { class: "rule", y1: edge.top, y2: height - edge.bottom });
  picture.append(rule);
  return {
    picture,
    stepAt: (at) => Math.round(1 + ((at - edge.left) / (width - edge.left - edge.right)) * (steps - 1)),
    mark: (t) => {
      rule.setAttribute("x1", x(t));
      rule.setAttribute("x2", x(t));
    },
  };
}

/** A range of round numbers around the values, in three to six parts. */
function scaleOf(values) {
  if (!values.length) return { low: 0, high: 1, unit: 0.2 };
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const unit = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2].find((u) => (most - least) / u <= 4.5) ?? 0.2;
  const low = Math.max(0, Math.floor(least / unit - 0.1) * unit);
  return { low, high: Math.max(low + unit, Math.min(1, Math.ceil(most / unit + 0.1) * unit)), unit };
}

function line(curve, x, y) {
  const points = curve.values.map((v, i) => `${x(curve.late + i + 1).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
  const path = svg("polyline", {
    points, fill: "none", stroke: curve.colour, "stroke-width": 2.2, "stroke-linejoin": "round",
    "stroke-dasharray": curve.dash,
  });
  const end = svg("circle", { cx: x(curve.late + curve.T), cy: y(curve.last), r: 4.5, fill: curve.colour });
  return curve.values.length ? [path, end] : [end];
}

function ticks(steps, width) {
  const wanted = Math.min(steps, width < 500 ? 5 : 9);
  const found = new Set([1, steps]);
  const raw = Math.max(1, steps / wanted);
  const unit = 2 ** Math.round(Math.log2(raw));
  for (let t = unit; t <= steps - unit / 2; t += unit) if (t > unit / 2) found.add(t);
  return [...found].filter((t) => t === 1 || t === steps || t - 1 > unit / 3);
}

function describe(curves, lines) {
  const ends = curves.map((c) => `${c.label}: ${percent(c.last)} after ${c.late + c.T} steps`);
  return [...ends, ...lines.map((share) => `original: ${percent(share)}`)].join("; ");
}
