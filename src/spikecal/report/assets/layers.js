// The layers as a table that sorts; a row opens to its details.
const COLUMNS = [
  { key: "name", title: "layer", value: (row) => row.name },
  { key: "order", title: "#", value: (row) => row.order, text: (row) => String(row.order) },
  { key: "what", title: "what it does", value: (row) => row.what, text: (row) => row.what, class: "what" },
  { key: "threshold", title: "threshold", value: (row) => row.threshold?.[0], text: (row) => number(row.threshold?.[0]) },
  { key: "rate", title: "fires", value: (row) => row.rate, text: (row) => percent(row.rate), meter: true, compared: true },
  { key: "waits", title: "waits", value: (row) => row.waits, text: (row) => (row.waits ? String(row.waits) : "–") },
  { key: "before", title: "error before", value: (row) => row.before, text: (row) => number(row.before) },
  { key: "after", title: "after", value: (row) => row.after, text: (row) => number(row.after), meter: true, scale: "error", compared: true },
  { key: "error", title: "on test images", value: (row) => row.error, text: (row) => number(row.error), meter: true, scale: "error", compared: true, tested: true },
  { key: "saturated", title: "saturated", value: (row) => row.saturated, text: (row) => percent(row.saturated), limit: 0.05, compared: true },
  { key: "dead", title: "dead", value: (row) => row.dead, text: (row) => percent(row.dead), limit: 0.99 },
  { key: "energy", title: "energy", value: (row) => row.energy, text: (row) => percent(row.energy) },
];

const layers = { sort: "order", down: false, other: null, open: new Set(), root: null };

function drawLayers(body) {
  const compare = el("select", { id: "compare", onchange: () => {
    layers.other = compare.value === "" ? null : Number(compare.value);
    renderLayers();
  } });
  layers.root = el("div", { class: "scroll table-box", role: "region", "aria-labelledby": "layers-title", tabindex: 0 });
  layers.compare = compare;
  layers.caption = el("p", { class: "caption" });
  if (data.networks.length > 1) {
    body.append(el("p", { class: "row" }, el("label", { for: "compare" }, "Compare with"), compare));
  }
  body.append(layers.caption, layers.root);
  responsive(layers.root, (width) => layers.root.style.setProperty("--box", `${width}px`));
  shown.listeners.push(renderLayers);
  renderLayers();
}

/** Rows of a network with their place in it and their node of the graph. */
function layerRows(of) {
  const graph = source(of).graph;
  return of.layers.map((row, i) => ({ ...row, order: i + 1, what: graph.nodes[graph.inputs + i].what }));
}

function columnsShown(rows) {
  const own = COLUMNS.filter((column) =>
    (!column.tested || source().against_ann) && rows.some((row) => known(column.value(row)) && column.value(row) !== ""));
  if (layers.other === null) return own;
  const other = new Map(data.networks[layers.other].layers.map((row) => [row.name, row]));
  const label = data.networks[layers.other].label;
  return own.flatMap((column) => {
    if (!column.compared) return [column];
    const beside = {
      key: `other-${column.key}`, title: `${column.title}, ${label}`, class: "other",
      value: (row) => (other.has(row.name) ? column.value(other.get(row.name)) : null),
      text: (row) => (other.has(row.name) ? column.text(other.get(row.name)) : "–"),
    };
    return [column, beside];
  });
}

function renderLayers() {
  const of = network();
  if (layers.other === shown.id) layers.other = null;
  options(layers.compare, [["", "nothing"], ...data.networks.filter((n) => n.id !== of.id).map((n) => [n.id, n.label])], layers.other ?? "");
  const rows = layerRows(of);
  const columns = columnsShown(rows);
  const sorted = sortRows(rows, columns.find((c) => c.key === layers.sort) ?? COLUMNS[1]);
  const head = el("tr", {}, columns.map(headCell));
  // errors share one scale, so that bars beside each other can be compared
  const alike = (c) => columns.filter((other) => other === c || (c.scale && other.scale === c.scale));
  const most = Object.fromEntries(columns.map((c) => [c.key, largest(alike(c).flatMap((a) => rows.map((r) => Number(a.value(r)) || 0)), 1e-12)]));
  const body = el("tbody", {}, sorted.map((row) => layerRow(of, row, columns, most)));
  layers.root.replaceChildren(el("table", { class: "layers" }, el("thead", {}, head), body));
  layers.caption.textContent = layersCaption(of);
}

function layersCaption(of) {
  const from = source(of);
  const tested = from.against_ann ? ` and on ${from.errors_on} test images` : "";
  const errors = `Errors are relative, ‖x − s̄‖² / ‖x‖²: before and after calibration, on calibration images${tested}.`;
  const where = from.errors_on ? "test" : "calibration";
  return `${of.label}. ${errors} Fires: spikes per neuron and step; saturated: neurons that fire at every step; ` +
    `dead: neurons that fire for no image; on ${where} images. Energy: share of the network's. Click a layer's name for details.`;
}

function headCell(column) {
  const sorted = layers.sort === column.key;
  const cell = el("th", { scope: "col", class: column.class, "aria-sort": sorted ? (layers.down ? "descending" : "ascending") : null });
  cell.append(el("button", { type: "button", "data-key": column.key, onclick: () => sortBy(column.key) }, column.title));
  return cell;
}

/** Numbers sort from the largest, which is what matters; names and the order from the first. */
function sortBy(key) {
  const plain = ["name", "order", "what"].includes(key);
  layers.down = layers.sort === key ? !layers.down : !plain;
  layers.sort = key;
  renderLayers();
  layers.root.querySelector(`thead button[data-key="${key}"]`).focus();
}

function sortRows(rows, column) {
  const sign = layers.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [one, two] = [column.value(a), column.value(b)];
    if (!known(one) || !known(two)) return (known(two) ? 1 : 0) - (known(one) ? 1 : 0) || a.order - b.order;
    const order = typeof one === "string" ? one.localeCompare(two, "en", { numeric: true }) : one - two;
    return sign * order || a.order - b.order;
  });
}

function layerRow(of, row, columns, most) {
  const id = `layer-${of.id}-${row.order}`;
  const button = el("button", { type: "button", "aria-expanded": "false", title: row.name }, row.name);
  const line = el("tr", { "data-layer": row.name }, columns.map((column) => {
    if (column.key === "name") return el("th", { scope: "row" }, button);
    return dataCell(column, row, most[column.key]);
  }));
  if (line.querySelector(".flagged")) line.classList.add("flag");
  const detail = el("tr", { class: "detail", id, hidden: true }, el("td", { colspan: columns.length }));
  button.setAttribute("aria-controls", id);
  const toggle = (open) => {
    button.setAttribute("aria-expanded", String(open));
    detail.hidden = !open;
    if (open) layers.open.add(row.name);
    else layers.open.delete(row.name);
    if (open && !detail.firstChild.firstChild) detail.firstChild.append(layerDetail(of, row));
  };
  button.addEventListener("click", () => toggle(button.getAttribute("aria-expanded") !== "true"));
  if (layers.open.has(row.name)) toggle(true);
  return [line, detail];
}

function dataCell(column, row, most) {
  const value = column.value(row);
  const flagged = column.limit && known(value) && value > column.limit;
  const names = [column.class, column.meter && known(value) ? "meter" : null, flagged ? "flagged" : null].filter(Boolean);
  const cell = el("td", { title: column.class === "what" ? row.what : null, class: names.join(" ") || null }, el("span", {}, column.text(row)));
  if (column.meter && known(value)) cell.style.setProperty("--share", (value / most).toFixed(3));
  return cell;
}

/** Opens a layer's row, goes there and puts the focus on it; other parts of the page lead here. */
function openLayer(name) {
  layers.open.add(name);
  renderLayers();
  const row = [...layers.root.querySelectorAll("tr[data-layer]")].find((line) => line.dataset.layer === name);
  if (!row) return;
  const button = row.querySelector("button");
  button.focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
}
