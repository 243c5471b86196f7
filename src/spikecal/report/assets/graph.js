// The network from left to right: one node per stage, coloured by firing rate or error, with arcs for skips.
const NODE = 28;
const COLOURINGS = {
  rate: { title: "firing rate", value: (row) => row.rate, text: (value) => percent(value) },
  error: { title: "error", value: (row) => row.error, text: number },
};

function drawGraph(body) {
  let by = "rate";
  const box = el("div", { class: "scroll graph-box" });
  const scale = el("p", { class: "scale" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const select = el("select", { id: "colouring", onchange: () => {
    by = select.value;
    draw();
  } });
  options(select, Object.entries(COLOURINGS).map(([key, of]) => [key, of.title]), by);
  const draw = () => {
    const graph = source().graph;
    const rows = [...Array(graph.inputs).fill(null), ...network().layers];
    const colouring = COLOURINGS[by];
    const values = rows.map((row) => (row === null ? null : colouring.value(row)));
    const most = largest(values);
    scale.replaceChildren(...scaleLegend(colouring, most));
    box.replaceChildren(graphPicture(graph, rows, values, most, Math.floor(box.clientWidth), (i) => tell(graph, rows, i)));
  };
  const tell = (graph, rows, i) => {
    const node = graph.nodes[i];
    const parts = [el("b", {}, node.name), node.what ? el("span", {}, node.what) : null];
    if (rows[i] && known(rows[i].rate)) parts.push(el("span", {}, "fires ", el("b", {}, percent(rows[i].rate))));
    if (rows[i] && known(rows[i].error)) parts.push(el("span", {}, "error ", el("b", {}, number(rows[i].error))));
    if (rows[i] && known(rows[i].start)) parts.push(el("span", {}, windowText(network(), rows[i])));
    readout.replaceChildren(...parts.filter(Boolean));
  };
  body.append(
    el("p", { class: "row" }, el("label", { for: "colouring" }, "Colour by"), select, scale),
    box, readout,
    el("p", { class: "caption" }, "Squares are layers of neurons, circles are values without neurons: outputs, and sums that several " +
      "layers read. Arrow keys go from node to node, Enter opens the layer’s row.")
  );
  responsive(box, draw);
  shown.listeners.push(draw);
}

function scaleLegend(colouring, most) {
  return heatScale(colouring.text(0), colouring.text(most));
}

function graphPicture(graph, rows, values, most, room, tell) {
  const columns = largest(graph.nodes.map((node) => node.column)) + 1;
  const lanes = largest(graph.nodes.map((node) => node.lane)) + 1;
  const wide = Math.min(84, Math.max(42, (room - 40) / columns));
  const span = largest(graph.edges.map(([a, b]) => graph.nodes[b].column - graph.nodes[a].column), 1);
  const arcs = span > 1 ? rise(span) + 6 : 6;
  const x = (node) => 20 + (node.column + 0.5) * wide;
  const y = (node) => arcs + NODE / 2 + 6 + node.lane * (NODE + 22);
  const width = Math.max(room, 40 + columns * wide);
  const height = arcs + lanes * (NODE + 22) + 12;
  const picture = svg("svg", { width, height, role: "group", "aria-label": `Graph of ${rows.length} nodes` });
  const edges = graph.edges.map(([a, b]) => svg("path", { class: "edge", d: edgePath(graph.nodes[a], graph.nodes[b], x, y) }));
  picture.append(...edges);
  const nodes = graph.nodes.map((node, i) => {
    const drawn = graphNode(node, i - graph.inputs + 1, rows[i], known(values[i]) && most > 0 ? heat(values[i] / most) : null);
    drawn.setAttribute("transform", `translate(${x(node)} ${y(node)})`);
    drawn.setAttribute("tabindex", i === 0 ? 0 : -1);
    return drawn;
  });
  picture.append(...nodes);
  makeKeys(graph, nodes, edges, tell);
  return picture;
}

function rise(span) {
  return Math.min(20 + 8 * span, 130);
}

/** Neighbours are joined straight, others by an arc that leaves and enters at the top. */
function edgePath(from, to, x, y) {
  const half = NODE / 2;
  const [x1, y1, x2, y2] = [x(from), y(from), x(to), y(to)];
  const span = to.column - from.column;
  if (span <= 1) return `M${x1 + half} ${y1} C${x1 + half + 8} ${y1} ${x2 - half - 8} ${y2} ${x2 - half} ${y2}`;
  const top = Math.min(y1, y2) - half - rise(span) * 1.2;
  return `M${x1 + 4} ${y1 - half} C${x1 + 12} ${top} ${x2 - 12} ${top} ${x2 - 4} ${y2 - half}`;
}

function graphNode(node, order, row, colour) {
  const half = NODE / 2;
  const square = svg("rect", { x: -half, y: -half, width: NODE, height: NODE, rx: node.kind.endsWith("neurons") ? 5 : half });
  square.style.fill = colour ? rgb(colour) : "var(--sunken)";
  const label = svg("text", { y: 4, "text-anchor": "middle" }, node.kind === "input" ? "in" : String(order));
  if (colour) label.style.fill = readable(colour);
  else label.style.fill = "var(--ink)";
  const said = [node.name, node.what, node.output ? "output" : ""];
  if (row && known(row.rate)) said.push(`fires ${percent(row.rate)}`);
  if (row && known(row.error)) said.push(`error ${number(row.error)}`);
  const waits = row && row.waits ? `waits ${row.waits}` : null;
  said.push(waits);
  const below = waits ? svg("text", { class: "wait", y: half + 11, "text-anchor": "middle" }, waits) : null;
  return svg("g", { class: "node", role: "button", "aria-label": said.filter(Boolean).join(", ") }, square, label, below);
}

/** One stop of the tab key for the whole graph; arrow keys move inside it. */
function makeKeys(graph, nodes, edges, tell) {
  const near = (i) => graph.edges.forEach(([a, b], at) => edges[at].classList.toggle("near", a === i || b === i));
  const go = (i) => {
    for (const node of nodes) node.setAttribute("tabindex", -1);
    nodes[i].setAttribute("tabindex", 0);
    nodes[i].focus();
    nodes[i].scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const open = (i) => {
    if (i >= graph.inputs) openLayer(graph.nodes[i].name);
  };
  nodes.forEach((node, i) => {
    node.addEventListener("focus", () => {
      tell(i);
      near(i);
    });
    node.addEventListener("pointerenter", () => {
      tell(i);
      near(i);
    });
    node.addEventListener("click", () => open(i));
    node.addEventListener("keydown", (event) => {
      const move = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: nodes.length - 1 }[event.key];
      if (move !== undefined) go(Math.min(nodes.length - 1, Math.max(0, move)));
      else if (event.key === "Enter" || event.key === " ") open(i);
      else return;
      event.preventDefault();
    });
  });
}
