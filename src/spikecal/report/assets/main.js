// Puts the parts together, one after the other, so that the summary can be read while the rest is drawn.
function start() {
  const select = document.getElementById("shown");
  options(select, data.networks.map((n) => [n.id, n.label]), shown.id);
  select.addEventListener("change", () => show(Number(select.value)));
  document.getElementById("chooser").hidden = data.networks.length < 2;
  for (const button of document.querySelectorAll("button.place")) {
    button.addEventListener("click", () => {
      show(Number(button.dataset.network));
      openLayer(button.dataset.layer);
    });
  }
  const parts = [
    ["accuracy", drawAccuracy], ["detections", drawDetections], ["layers", drawLayers], ["spikes", drawSpikes],
    ["network", drawGraph],
  ].filter(([id]) => document.getElementById(id));
  const next = () => {
    const part = parts.shift();
    if (!part) {
      document.body.dataset.ready = "yes";
      return;
    }
    part[1](document.querySelector(`#${part[0]} .body`));
    setTimeout(next, 0);
  };
  next();
}

start();
