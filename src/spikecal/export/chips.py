"""Chips as profiles: what each can hold, with the public source of every figure, and what it cannot hold of a network.

Unpublished limits are not checked: the profile has None for them.
"""

from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

from spikecal.errors import ConfigError
from spikecal.export.integers import Per
from spikecal.export.netlist import (
    Clock,
    Conv,
    Delay,
    Flatten,
    Image,
    Linear,
    MaxPool,
    Netlist,
    Neurons,
    Node,
    Output,
    SumPool,
)
from spikecal.neurons import IntegrateAndFire, SignedIntegrateAndFire


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Limits of one chip. `sources` has the publication of each figure."""

    name: str
    title: str
    bits: int = 8  # of weights
    per: Per = "channel"
    cores: int | None = None
    layers: int | None = None  # at most, if each needs its own core
    neurons: int | None = None  # of the whole chip
    neurons_per_core: int | None = None
    bytes_per_core: int | None = None
    channels: int | None = None
    side: int | None = None  # of a layer's image
    kernel: int | None = None
    strides: tuple[int, ...] | None = None
    padding: int | None = None
    pools: tuple[int, ...] | None = None
    targets: int | None = None  # layers that one layer may send to
    delays: int = 0  # steps that a connection may hold spikes back
    signed: bool = False  # whether neurons can fire -1
    state_bits: int = 32
    currents: bool = True  # whether inputs and outputs can be numbers, not only events
    clock: bool = True  # whether a bias can differ between steps
    sources: tuple[tuple[str, str], ...] = ()


SINABS = "sinabs documentation, docs/speck/overview.md (github.com/synsense/sinabs)"
LOIHI = "open-neuromorphic.org/neuromorphic-computing/hardware/loihi-2-intel"
LAVA = "lava, Conv and Dense: num_weight_bits (github.com/lava-nc/lava)"
LAVA_DL = "lava-dl, blocks of slayer: Delay(max_delay=62) (github.com/lava-nc/lava-dl)"
SPINNAKER = "SpiNNaker2 datasheet 0.03, 2021 (github.com/SpiNNakerManchester/SpiNNMachine)"

CHIPS = {
    chip.name: chip
    for chip in (
        Chip(name="generic", title="any chip with weights of 8 bits and accumulators of 32"),
        Chip(
            name="loihi2", title="Intel Loihi 2", bits=8, cores=128, neurons=1_048_576, neurons_per_core=8192,
            delays=62, signed=True,
            sources=(
                ("bits", LAVA), ("cores", LOIHI), ("neurons", LOIHI), ("neurons_per_core", f"{LOIHI}: neurons / cores"),
                ("delays", LAVA_DL), ("signed", f"{LOIHI}: neurons in microcode, graded spikes"),
            ),
        ),
        Chip(
            name="speck", title="SynSense Speck 2f (DYNAP-CNN)", bits=8, per="layer", cores=9, layers=9,
            neurons=320_000, channels=1024, side=64, kernel=16, strides=(1, 2, 4, 8), padding=7, pools=(1, 2, 4),
            targets=2, state_bits=16, currents=False, clock=False,
            sources=tuple(
                (name, SINABS)
                for name in (
                    "bits", "cores", "layers", "neurons", "channels", "side", "kernel", "strides", "padding", "pools",
                    "targets", "state_bits", "currents",
                )
            ),
        ),
        Chip(
            name="spinnaker2", title="SpiNNaker2", cores=152, bytes_per_core=131_072,
            sources=(("cores", SPINNAKER), ("bytes_per_core", SPINNAKER)),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """The share of a chip that a layer needs, and everything in its way."""

    layer: str
    neurons: int
    weights: int
    fan_in: int
    cores: int
    problems: tuple[str, ...]


def chip_called(name: str) -> Chip:
    if name not in CHIPS:
        raise ConfigError(f"there is no profile of {name!r}: choose from {', '.join(CHIPS)}")
    return CHIPS[name]


def fits(netlist: Netlist, chip: Chip) -> list[Fit]:
    """One row per layer, and one for the whole network."""
    found = [_fit(netlist, chip, node) for node in netlist.nodes.values() if isinstance(node, Neurons | Output)]
    neurons, weights = sum(fit.neurons for fit in found), sum(fit.weights for fit in found)
    cores = sum(fit.cores for fit in found)
    problems = [
        _over("neurons", neurons, chip.neurons),
        _over("cores", cores, None if chip.layers is not None else chip.cores),
        _over("layers", len(found), chip.layers),
    ]
    largest = max(fit.fan_in for fit in found)
    return [*found, Fit("all", neurons, weights, largest, cores, tuple(filter(None, problems)))]


def refuse_misfit(path: Path, netlist: Netlist, chip: Chip) -> None:
    """The ConfigError with the first thing in the way."""
    bad = [fit for fit in fits(netlist, chip) if fit.problems]
    if bad:
        raise ConfigError(
            f"{path} does not fit {chip.title}: {bad[0].layer}: {bad[0].problems[0]} "
            f"(`spikecal check {path} --target {chip.name}` lists all)"
        )


def _fit(netlist: Netlist, chip: Chip, end: Neurons | Output) -> Fit:
    nodes = _stage(netlist, end)
    weighted = [node for node in nodes if isinstance(node, Conv | Linear)]
    neurons = prod(end.shape) if isinstance(end, Neurons) else 0
    weights = sum(int((node.weight != 0).sum()) for node in weighted)
    fan_in = sum(node.weight[0].numel() for node in weighted)
    values = weights * ceil(chip.bits / 8) + neurons * ceil(chip.state_bits / 8)
    cores = max(
        1,
        0 if chip.neurons_per_core is None else ceil(neurons / chip.neurons_per_core),
        0 if chip.bytes_per_core is None else ceil(values / chip.bytes_per_core),
    )
    problems = [*_of_end(netlist, chip, end), *(problem for node in nodes for problem in _of_node(netlist, chip, node))]
    return Fit(end.name, neurons, weights, fan_in, cores, tuple(dict.fromkeys(filter(None, problems))))


def _stage(netlist: Netlist, end: Node) -> list[Node]:
    """The nodes between a layer and those before it."""
    found: dict[str, Node] = {}
    todo = list(end.inputs)
    while todo:
        node = netlist.nodes[todo.pop()]
        if not isinstance(node, Neurons | Image):
            found[node.name] = node
            todo.extend(node.inputs)
    return list(found.values())


def _of_end(netlist: Netlist, chip: Chip, end: Neurons | Output) -> list[str | None]:
    sides = end.shape[1:] if len(end.shape) == 3 else (1, 1)
    found = [_over("channels", end.shape[0], chip.channels), _over("positions on a side", max(sides), chip.side)]
    if isinstance(end, Output):
        return [*found, None if chip.currents else "it is read as numbers, but the chip sends events"]
    if end.neuron != IntegrateAndFire() and not (chip.signed and end.neuron == SignedIntegrateAndFire()):
        found.append(f"{end.neuron.name} neurons{_signed_elsewhere(end)}")
    heads = {netlist.nodes[name].name for name in _readers(netlist, end)}
    return [*found, _over("layers that read it", len(heads), chip.targets)]


def _signed_elsewhere(end: Neurons) -> str:
    """The chips that have signed neurons, if these are."""
    names = [chip.name for chip in CHIPS.values() if chip.signed]
    return f", which {' and '.join(names)} has" if end.neuron == SignedIntegrateAndFire() else ""


def _readers(netlist: Netlist, node: Node) -> set[str]:
    """The layers that a layer sends to."""
    readers, found, todo = netlist.readers(), set[str](), [node.name]
    while todo:
        for name in readers[todo.pop()]:
            if isinstance(netlist.nodes[name], Neurons | Output):
                found.add(name)
            else:
                todo.append(name)
    return found


def _of_node(netlist: Netlist, chip: Chip, node: Node) -> list[str | None]:
    if isinstance(node, MaxPool):
        return ["a max-pool, which needs its own memory"]
    if isinstance(node, Delay):
        late = _over("steps that it is late", node.steps, chip.delays)
        return [late if _spikes(netlist, node.name) else f"a delay line for currents, of {node.steps} steps"]
    if isinstance(node, Clock):
        ticks = bool(node.gate.any()) or bool((node.own != node.own[0]).any())
        return ["initial potentials, temporal biases or waits" if ticks and not chip.clock else None]
    if any(isinstance(netlist.nodes[name], Image) for name in node.inputs) and not chip.currents:
        return ["it reads an image, but the chip takes events", *_of_window(chip, node)]
    if isinstance(node, Conv | Linear) and not all(_spikes(netlist, name) for name in node.inputs):
        way = ": convert with --joints signed" if chip.signed else ""
        return [f"its input is a current, not spikes{way}", *_of_window(chip, node)]
    return _of_window(chip, node)


def _spikes(netlist: Netlist, name: str) -> bool:
    node = netlist.nodes[name]
    if isinstance(node, SumPool | Flatten | Delay) or (isinstance(node, Conv) and node.moves):
        return all(_spikes(netlist, source) for source in node.inputs)
    return isinstance(node, Neurons | Image)


def _of_window(chip: Chip, node: Node) -> list[str | None]:
    if isinstance(node, Conv):
        strides = chip.strides
        odd = strides is not None and not set(node.stride) <= set(strides)
        return [
            _over("kernel", max(node.weight.shape[2:]), chip.kernel),
            _over("padding", max(node.padding), chip.padding),
            f"stride {max(node.stride)}" if odd else None,
        ]
    if isinstance(node, SumPool) and chip.pools is not None and not set(node.kernel) <= set(chip.pools):
        return [f"a pool over {node.kernel[0]}×{node.kernel[1]}"]
    return []


def _over(what: str, count: int, most: int | None) -> str | None:
    return None if most is None or count <= most else f"{what}: {count:,} of {most:,}"
