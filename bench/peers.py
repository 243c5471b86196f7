"""spikecal beside other ways to a spiking network: time, memory, accuracy and spikes; bench/results/peers.json.

    make bench-peers                                half an hour, in an environment of its own; rerun to resume
    python bench/peers.py [--data-root DIR]         the same, where the peers are installed
    python bench/peers.py --images 8 --tested 20 --calibration 64 --result X     a quick look, into another file

Set OMP_NUM_THREADS=1 on a machine that others use: times are then seconds of the processor.

Everybody gets the same network with batch normalisation folded, the same calibration images (of training) and the same
test images. Times are measured in turns, one run of everybody a round; ratios are medians over rounds of the ratio
*within* a round. Each peer runs as its documentation runs it, and in its fastest mode: of all its ways to run, layouts
of memory and numbers of images at once, the one that was fastest on some images. Peers get all that torch offers to
everybody: inference mode, channels-last memory, calls small enough for the processor's caches.
"""

import argparse
import json
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import sinabs
import sinabs.layers
import torch
from sinabs.from_torch import from_model
from spikingjelly.activation_based import ann2snn, functional
from spikingjelly.activation_based.neuron.base_node import BaseNode
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import spikecal
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.files import write_whole
from spikecal.kernels import described
from spikecal.memory import in_words, return_freed_memory
from spikecal.reproduce.cells import machine
from spikecal.zoo.models import load_model

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "peers.json"
NETWORKS = {"resnet20": None, "vgg16-half": ROOT / "weights" / "vgg16-half.safetensors"}
STEPS = (4, 8, 16, 32)
TIMED_T, PART = 16, 128  # steps of runs that are timed; images of a batch, as in the peers' examples
LTB_PART = 16  # images of a batch of local threshold balancing: 64 batches of 1,024 images, and it wants 50
SIZES = (128, 32, 8)  # images at once, of which the fastest is taken
TRIED = 32  # images at least, on which it is found
ENOUGH = 20.0  # seconds after which a conversion is not measured again


@dataclass(frozen=True)
class Way:
    """How a network is run: one of its peer's styles, so many images at once, in which layout of memory."""

    style: str
    images: int
    channels_last: bool

    def __str__(self) -> str:
        layout = ", channels last" if self.channels_last else ""
        return f"{self.style}, {self.images} images at once{layout}"


Net = Any
Style = Callable[[Net, Tensor, int], Tensor]  # images to the outputs of each step [T, N, classes]


@dataclass(frozen=True)
class Peer:
    """A way to a spiking network. The first of its `styles` to run is that of its documentation."""

    convert: Callable[[nn.Module, Tensor, int], Net]  # of network, calibration images and T
    styles: Mapping[str, Style]
    neurons: type[nn.Module]  # what emits
    for_T: bool = False  # whether a network is converted for one T
    unit: Callable[[Any], Tensor | float] = lambda neuron: 1.0  # what one spike of a neuron is in its output

    @property
    def documented(self) -> Way:
        return Way(next(iter(self.styles)), PART, False)

    def ways(self) -> list[Way]:
        return [Way(*chosen) for chosen in product(self.styles, SIZES, (False, True))]

    def run(self, net: Net, x: Tensor, T: int, way: Way) -> Tensor:
        """Outputs of each step, `[T, N, classes]`."""
        layout = torch.channels_last if way.channels_last else torch.contiguous_format
        with torch.inference_mode():
            parts = (part.contiguous(memory_format=layout) for part in x.split(way.images))
            return torch.cat([self.styles[way.style](net, part, T) for part in parts], 1)

    def readouts(self, outputs: Tensor, net: Net, images: Tensor) -> Iterator[Tensor]:
        """The answers that its documentation knows after these steps `[T, N, classes]`, of which the best counts."""
        yield outputs.sum(0)


# -- SpikingJelly ------------------------------------------------------------------------------------------------------


class SpikingJelly(Peer):
    def readouts(self, outputs: Tensor, net: Net, images: Tensor) -> Iterator[Tensor]:
        """With all steps, and with the first ones left out that its estimate says, as its ImageNet example does."""
        yield outputs.sum(0)
        functional.set_step_mode(net, "s")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few steps it leaves out fewer than it would
            start = ann2snn.estimate_delay_start(net, [images[:PART]], "cpu", len(outputs))
        yield outputs[start:].sum(0)


def by_recipe(recipe: type, part: int, **settings: Any) -> Callable[[nn.Module, Tensor, int], Net]:
    def convert(model: nn.Module, images: Tensor, T: int) -> Net:
        return ann2snn.Converter(recipe(dataloader=list(images.split(part)), **settings)).convert(deepcopy(model))

    return convert


def single_steps(net: Net, x: Tensor, T: int) -> Tensor:
    functional.set_step_mode(net, "s")
    functional.reset_net(net)
    return torch.stack([net(x) for _ in range(T)])


def multi_step(net: Net, x: Tensor, T: int) -> Tensor:
    functional.set_step_mode(net, "m")
    functional.reset_net(net)
    return net(over_time(x, T).unflatten(0, (T, len(x))))


def over_time(x: Tensor, T: int) -> Tensor:
    """The images once a step, in the layout of memory they have."""
    return x.repeat(T, 1, 1, 1).contiguous(memory_format=torch.channels_last if is_last(x) else torch.contiguous_format)


def is_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def spikingjelly(recipe: type = ann2snn.RateCodingRecipe, part: int = PART, **settings: Any) -> Peer:
    styles = {"single-step": single_steps, "multi-step": multi_step}
    return SpikingJelly(by_recipe(recipe, part, **settings), styles, BaseNode)


# -- sinabs ------------------------------------------------------------------------------------------------------------


def sinabs_converted(model: nn.Module, images: Tensor, T: int) -> Net:
    return from_model(model, input_shape=tuple(images.shape[1:]), num_timesteps=T)


def sinabs_steps(net: Net, steps: int) -> None:
    net.reset_states()
    for module in net.spiking_model.modules():
        if isinstance(module, sinabs.layers.SqueezeMixin):
            module.num_timesteps = steps


def sinabs_at_once(net: Net, x: Tensor, T: int) -> Tensor:
    sinabs_steps(net, T)
    return net(x.repeat_interleave(T, 0)).unflatten(0, (len(x), T)).transpose(0, 1)


def sinabs_stepwise(net: Net, x: Tensor, T: int) -> Tensor:
    sinabs_steps(net, 1)
    return torch.stack([net(x) for _ in range(T)])


# -- a plain loop ------------------------------------------------------------------------------------------------------


class Neurons(nn.Module):
    """A ReLU, or integrate-and-fire neurons in the place of one, as in the authors' code of the paper."""

    def __init__(self) -> None:
        super().__init__()
        self.spiking = False
        self.threshold, self.start, self.v = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(0.0)

    def forward(self, x: Tensor) -> Tensor:
        if not self.spiking:
            return x.relu()
        self.v = self.v + x
        spikes = (self.v >= self.threshold).float() * self.threshold
        self.v = self.v - spikes
        return spikes


def spiking(net: nn.Module, whether: bool) -> list[Neurons]:
    found = [module for module in net.modules() if isinstance(module, Neurons)]
    for neurons in found:
        neurons.spiking, neurons.v = whether, neurons.start
    return found


def plain_loop(net: Net, x: Tensor, T: int) -> Tensor:
    spiking(net, True)
    return torch.stack([net(x) for _ in range(T)])


SEARCHED, CORRECTED, CANDIDATES, MOMENTUM = 256, 128, 95, 0.9


@torch.inference_mode()
def plainly_converted(model: nn.Module, images: Tensor, T: int) -> Net:
    """Thresholds of least squared error among 95, per channel; potentials layer by layer, a whole run for each.

    The search needs fewer passes over memory than that of the authors' code, and has the same result. Half a threshold
    is in the potential from the start, where their code adds it in T parts.
    """
    net = deepcopy(model)
    for name, module in list(net.named_modules()):
        if type(module) is nn.ReLU:
            parent, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(parent), leaf, Neurons())
    layers = spiking(net, False)
    for number, part in enumerate(images[:SEARCHED].split(PART)):
        for neurons, values in captured(net, layers, lambda part=part: net(part)):
            found = least_squares(values.relu(), T)
            neurons.threshold = found if number == 0 else MOMENTUM * neurons.threshold + (1 - MOMENTUM) * found
    few = images[:CORRECTED]
    for neurons in layers:
        neurons.start = neurons.threshold / 2
    for neurons in layers:
        spiking(net, False)
        target = mean_output(neurons, lambda: net(few))
        error = target - mean_output(neurons, lambda: plain_loop(net, few, T)) / T
        neurons.start = neurons.start + T * error
    return net


def captured(net: nn.Module, layers: list[Neurons], run: Callable[[], Any]) -> list[tuple[Neurons, Tensor]]:
    """What reaches each layer."""
    found: dict[Neurons, Tensor] = {}
    hooks = [layer.register_forward_pre_hook(lambda layer, given: found.update({layer: given[0]})) for layer in layers]
    run()
    for hook in hooks:
        hook.remove()
    return list(found.items())


def mean_output(layer: Neurons, run: Callable[[], Any]) -> Tensor:
    """The mean over images of all that a layer gives while something runs."""
    total: list[Tensor] = []
    hook = layer.register_forward_hook(lambda layer, given, output: total.append(output.mean(0, keepdim=True)))
    run()
    hook.remove()
    return torch.stack(total).sum(0)


def least_squares(values: Tensor, T: int) -> Tensor:
    positions = tuple(d for d in range(values.ndim) if d != 1)
    highest = values.amax(positions, keepdim=True).clamp_min(1e-6)
    best, least = highest, torch.full_like(highest, torch.inf)
    for candidate in range(CANDIDATES):
        theta = highest * (1 - candidate / 100)
        error = (values * (T / theta)).floor_().clamp_(max=T).mul_(theta / T).sub_(values).square_()
        error = error.sum(positions, keepdim=True)
        best, least = torch.where(error < least, theta, best), torch.minimum(error, least)
    return best


# -- spikecal ----------------------------------------------------------------------------------------------------------


class Spikecal(Peer):
    """It has one way to run, which is cut into calls by itself."""

    def ways(self) -> list[Way]:
        return [self.documented]


def by_pipeline(**settings: Any) -> Callable[[nn.Module, Tensor, int], Net]:
    return lambda model, images, T: spikecal.convert(model, images, T=T, **settings).snn


def mean_over_steps(net: Net, x: Tensor, T: int) -> Tensor:
    return net(x).unsqueeze(0)


def ours(**settings: Any) -> Peer:
    return Spikecal(by_pipeline(**settings), {"all steps of a layer at once": mean_over_steps}, nn.Module, for_T=True)


LTB = ann2snn.LocalThresholdBalancingRecipe
PEERS = {
    "spikecal, LCP": ours(pipeline="lcp"),
    "spikecal, PC": ours(pipeline="pc"),
    "SpikingJelly, channel-wise, half threshold": spikingjelly(
        mode="99.9%", channel_wise=True, half_threshold=True, pre_spike_maxpool=True
    ),
    "sinabs": Peer(
        sinabs_converted, {"all steps at once": sinabs_at_once, "step by step": sinabs_stepwise}, sinabs.layers.IAF
    ),
    "SpikingJelly, local threshold balancing": spikingjelly(LTB, LTB_PART),
    "SpikingJelly, 99.9 %": spikingjelly(mode="99.9%"),
    "SpikingJelly, max": spikingjelly(mode="Max"),
    "plain loop": Peer(plainly_converted, {"loop": plain_loop}, Neurons, True, lambda neurons: neurons.threshold),
    "spikecal, AUTO, low effort": ours(pipeline="auto", effort="low"),
}
OURS = "spikecal, LCP"


# -- measuring ---------------------------------------------------------------------------------------------------------


# With one thread, seconds of the processor: those that others of a shared machine take are none of ours.
CLOCK = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def seconds(action: Callable[[], Any]) -> float:
    started = CLOCK()
    action()
    return CLOCK() - started


def peak_growth(action: Callable[[], Any]) -> int:
    """By how many bytes the memory of the process grows at most while something is done."""
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = resident("VmRSS")
    action()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@dataclass(frozen=True)
class Subject:
    """A network with the images that everybody gets."""

    model: nn.Module
    calibration: Tensor
    tested: Tensor
    labels: Tensor

    @classmethod
    def load(cls, name: str, calibration: int, tested: int, root: Path | None) -> "Subject":
        model, card = load_model(name, NETWORKS[name])
        sets = {split: subset(load_data("cifar10", split, root), count, 0)
                for split, count in (("train", calibration), ("test", tested))}  # fmt: skip
        images = {
            split: torch.cat([batch for batch, _ in Prepared(of, card).batches(100)]) for split, of in sets.items()
        }
        labels = sets["test"].labels
        assert labels is not None
        return cls(fuse(model), images["train"], images["test"], labels)

    def accuracy(self, outputs: Tensor) -> float:
        return float((outputs.argmax(-1) == self.labels).double().mean())


def ann(subject: Subject) -> dict[str, Any]:
    with torch.inference_mode():
        return {"accuracy": subject.accuracy(torch.cat([subject.model(x) for x in subject.tested.split(PART)]))}


def converted(peer: Peer, subject: Subject) -> dict[str, Any]:
    """Seconds and memory of conversion; accuracy at each T, and the spikes of an image at the largest."""
    nets: dict[int, Net] = {}
    peer.convert(subject.model, subject.calibration[:LTB_PART], TIMED_T)  # what libraries allocate once and for all

    def convert(T: int) -> None:
        nets[T] = peer.convert(subject.model, subject.calibration, T)

    grown = peak_growth(lambda: convert(TIMED_T))
    taken = [seconds(lambda: convert(TIMED_T))]
    while sum(taken) < ENOUGH and len(taken) < 3:
        taken.append(seconds(lambda: convert(TIMED_T)))
    found: dict[str, Any] = {"seconds": statistics.median(taken), "bytes": grown, "accuracy": {}}
    if peer.for_T:
        for T in STEPS:
            if T not in nets:
                convert(T)
            right, spikes = answered(peer, nets[T], subject, [T])
            found["accuracy"] |= right
    else:
        found["accuracy"], spikes = answered(peer, nets[TIMED_T], subject, STEPS)
    return {**found, "spikes_per_image": spikes / len(subject.tested)}


def answered(peer: Peer, net: Net, subject: Subject, steps: Any) -> tuple[dict[str, float], float]:
    """Accuracy after so many steps, and all spikes until the last of them."""
    if isinstance(net, spikecal.SpikingNetwork):
        result = spikecal.evaluate(net, (subject.tested, subject.labels))
        return {str(net.T): result.accuracy[-1]}, result.spikes
    spikes = torch.zeros((), dtype=torch.float64)

    def count(neuron: nn.Module, given: Any, emitted: Tensor) -> None:
        spikes.add_((emitted / peer.unit(neuron)).sum().double())

    hooks = [module.register_forward_hook(count) for module in net.modules() if isinstance(module, peer.neurons)]
    outputs = peer.run(net, subject.tested, max(steps), Way(next(iter(peer.styles)), SIZES[1], False))
    for hook in hooks:
        hook.remove()
    return {
        str(T): max(map(subject.accuracy, peer.readouts(outputs[:T], net, subject.calibration))) for T in steps
    }, float(spikes)


def timed(subject: Subject, images: int, rounds: int) -> dict[str, Any]:
    """Seconds of T steps, in turns; speed does not depend on thresholds, so that few images are enough to find them."""
    x = subject.tested[:images]
    nets: dict[str, Net] = {}
    ways: dict[str, list[Way]] = {}
    known: dict[Any, Way] = {}  # by what the layers of a network are: recipes that differ in numbers alone are as fast
    for name, peer in PEERS.items():
        nets[name] = net = peer.convert(subject.model, subject.calibration[:LTB_PART], TIMED_T)
        kind = type(peer), tuple(type(module) for module in net.modules())
        known[kind] = known[kind] if kind in known else fastest(peer, net, x)
        ways[name] = list(dict.fromkeys([peer.documented, known[kind]]))
        print(name, *ways[name], sep=" | ", flush=True)
    last = deepcopy(subject.model).to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def passes() -> None:
        for _ in range(TIMED_T):
            last(x.contiguous(memory_format=torch.channels_last))

    taken: dict[str, list[list[float]]] = {name: [[] for _ in ways[name]] for name in PEERS}
    dense = []
    for number in range(rounds + 1):  # the first does not count
        dense.append(seconds(passes))
        for name, peer in PEERS.items():
            for kept, way in zip(taken[name], ways[name], strict=True):
                laid_out(nets[name], way)
                kept.append(seconds(lambda peer=peer, net=nets[name], way=way: peer.run(net, x, TIMED_T, way)))
        print(number, {name: [round(kept[-1], 2) for kept in both] for name, both in taken.items()}, flush=True)

    def ratio(above: list[float], below: list[float]) -> float:
        return statistics.median(a / b for a, b in zip(above[1:], below[1:], strict=True))

    def memory(name: str, way: Way) -> int:
        laid_out(nets[name], way)
        return peak_growth(lambda: PEERS[name].run(nets[name], x, TIMED_T, way))

    rows = {}
    for name, several in taken.items():
        made = [
            {
                "way": str(way),
                "seconds": statistics.median(kept[1:]),
                "over_spikecal": ratio(kept, taken[OURS][0]),
                "over_passes": ratio(kept, dense),
                "bytes": memory(name, way),
            }
            for way, kept in zip(ways[name], several, strict=True)
        ]
        rows[name] = {"documented": made[0], "fastest": made[-1]}
    return {"images": images, "T": TIMED_T, "rounds": rounds, "passes": statistics.median(dense[1:]), "rows": rows}


def laid_out(net: Net, way: Way) -> None:
    """The weights in the layout of the images; spikecal's networks have one of their own."""
    if not isinstance(net, spikecal.SpikingNetwork):
        net.to(memory_format=torch.channels_last if way.channels_last else torch.contiguous_format)


def fastest(peer: Peer, net: Net, x: Tensor) -> Way:
    """The way that takes least time per image; the best three are tried again."""

    def taken(way: Way) -> float:
        laid_out(net, way)
        some = x[: max(TRIED, way.images)]
        return seconds(lambda: peer.run(net, some, TIMED_T, way)) / len(some)

    return min(sorted(peer.ways(), key=taken)[:3], key=lambda way: min(taken(way), taken(way)))


# -- pages -------------------------------------------------------------------------------------------------------------


def long_table(found: dict[str, Any]) -> str:
    lines: list[str] = []
    for network, of in found["networks"].items():
        timing, right = of["timing"], f"{100 * of['ann']['accuracy']:.1f} %"
        dense = f"{timing['T']} passes of it over {timing['images']} images take {timing['passes']:.2f} s"
        lines += [
            f"**{network}**: the ANN has {right}, and {dense}.",
            "",
            "| | Conversion | Memory | As documented | × spikecal | Memory | Fastest mode | × spikecal | Memory |",
            "|---" * 9 + "|",
        ]
        for name, row in of["rows"].items():
            cells = [name, f"{row['seconds']:.1f} s", in_words(row["bytes"])]
            for run in timing["rows"][name].values():
                cells += [f"{run['seconds']:.2f} s", f"{run['over_spikecal']:.2f}", in_words(run["bytes"])]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"| Accuracy, % | {' | '.join(f'T = {T}' for T in STEPS)} | Spikes an image, T = {STEPS[-1]} |"]
        lines.append("|---" * (2 + len(STEPS)) + "|")
        for name, row in of["rows"].items():
            right = [f"{100 * row['accuracy'][str(T)]:.1f}" for T in STEPS]
            lines.append(f"| {' | '.join([name, *right])} | {row['spikes_per_image']:,.0f} |")
        lines.append("")
    return "\n".join([*lines, ways_in_words(found), ""])


def ways_in_words(found: dict[str, Any]) -> str:
    """Which modes were the fastest."""
    said = [
        f"{network}, {name}: {runs['fastest']['way']}"
        for network, of in found["networks"].items()
        for name, runs in of["timing"]["rows"].items()
        if not name.startswith("spikecal")
    ]
    return f"The fastest modes were: {'; '.join(said)}."


def short_table(found: dict[str, Any]) -> str:
    """What the README has."""
    columns = "converts in | runs, × spikecal | % at T = 4, 8, 16, 32"
    lines = [
        f"| | {' | '.join(f'{network}: {columns}' for network in found['networks'])} |",
        "|---" * (1 + 3 * len(found["networks"])) + "|",
    ]
    for name in next(iter(found["networks"].values()))["rows"]:
        cells = [name]
        for of in found["networks"].values():
            if name not in of["rows"]:
                cells += ["–"] * 3
                continue
            row, runs = of["rows"][name], of["timing"]["rows"][name]
            slower = [f"{runs[kind]['over_spikecal']:.1f}" for kind in ("documented", "fastest")]
            cells += [f"{row['seconds']:.1f} s", " / ".join(dict.fromkeys(slower))]
            cells.append(" ".join(f"{100 * row['accuracy'][str(T)]:.1f}" for T in STEPS))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def write_pages(found: dict[str, Any]) -> None:
    for page, table in ((ROOT / "docs" / "performance.md", long_table), (ROOT / "README.md", short_table)):
        made = re.sub(
            r"(<!-- peers -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}\n{table(found)}\n{match[2]}",
            page.read_text(),
            flags=re.DOTALL,
        )
        write_whole(page, made)


# -- the command -------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--calibration", type=int, default=1024, help="calibration images")
    parser.add_argument("--tested", type=int, default=1000, help="test images, for accuracy")
    parser.add_argument("--images", type=int, default=64, help="images of timed runs")
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of everybody")
    given = parser.parse_args()
    settings = {name: getattr(given, name) for name in ("calibration", "tested", "images", "rounds")}
    packages = {name: version(name) for name in ("spikecal", "spikingjelly", "sinabs")}
    configuration = {**settings, "T": TIMED_T, "packages": packages, "loops": described(), "clock": CLOCK.__name__}
    found: dict[str, Any] = json.loads(given.result.read_text()) if given.result.exists() else {}
    if found.get("configuration") != configuration:
        found = {"configuration": configuration, "networks": {}}
    found["machine"] = machine()

    def keep(place: dict[str, Any], name: str, made: dict[str, Any]) -> None:
        place[name] = made
        write_whole(given.result, json.dumps(found, indent=1) + "\n")

    for network in NETWORKS:
        of = found["networks"].setdefault(network, {"rows": {}})
        if "timing" not in of:
            subject = Subject.load(network, given.calibration, given.tested, given.data_root)
            keep(of, "ann", ann(subject))
            keep(of, "timing", timed(subject, given.images, given.rounds))
    for name, (network, of) in product(PEERS, found["networks"].items()):
        if name not in of["rows"]:
            subject = Subject.load(network, given.calibration, given.tested, given.data_root)
            keep(of["rows"], name, converted(PEERS[name], subject))
            print(network, name, json.dumps(of["rows"][name]), flush=True)
    if given.result == RESULT:
        write_pages(found)


if __name__ == "__main__":
    main()
