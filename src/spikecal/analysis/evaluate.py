"""Measure in one run over images: accuracy after every step, agreement with the ANN, firing rates, energy."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.ahead import ahead
from spikecal.analysis.energy import Energy, EnergyMeter
from spikecal.analysis.exits import ExitRule, Exits
from spikecal.calibration.images import is_list_of_batches
from spikecal.devices import tensors_on
from spikecal.errors import ConfigError, DataError
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Conv, Joint, Spike
from spikecal.pipeline import Pipeline
from spikecal.progress import Progress
from spikecal.snn.execute import shapes_of
from spikecal.snn.network import SpikingNetwork
from spikecal.tensors import as_labels, as_tensor, refuse_names

BATCH = 250
EXACT = 1e-9  # rounding of floats that stand for shares of images
SAME = 1e-4  # of a tensor's norm: how much folding a batch normalisation may differ between machines


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What `evaluate` measured. Lists have one entry per step: `accuracy[t - 1]` is that after t steps.

    Attributes:
        T: Steps of the network.
        images: Number of images.
        accuracy: Share of correct answers; empty without labels.
        rates: Spikes per neuron and step of each layer.
        agreement: Share of answers that are the ANN's; empty without the ANN.
        ann: The ANN's accuracy on the same images.
        energy: Counted operations and their energy.
        spikes: Spikes of all layers and images.
        neurons: Neurons of all layers, times the number of images.
        classes: Number of classes.
        latency: Steps to the answer; T if no layer waits.
        interval: Steps between images; T if no layer waits.
        exits: The effect of early exit, if a rule was given.
        correct: Whether the answer to each image is right.
    """

    T: int
    images: int
    accuracy: list[float]
    rates: dict[str, float]
    agreement: list[float] = field(default_factory=list)
    ann: float | None = None
    energy: Energy | None = None
    spikes: int = 0
    neurons: int = 0
    classes: int = 0
    latency: int = 0
    interval: int = 0
    exits: Exits | None = None
    correct: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("latency", "interval"):
            object.__setattr__(self, name, getattr(self, name) or self.T)

    def __repr__(self) -> str:
        shares = {
            "accuracy": self.accuracy[-1] if self.accuracy else None,
            "ANN": self.ann,
            "agreement": self.agreement[-1] if self.agreement else None,
            "energy": None if self.energy is None else self.energy.ratio,
        }
        parts = "".join(f"; {name} {100 * share:.2f} %" for name, share in shares.items() if share is not None)
        return f"<spikecal.Evaluation: {self.images:,} images, T={self.T}{parts}; layers: {len(self.rates)}>"

    @property
    def latencies(self) -> list[int]:
        """Latency of the answer after each step of the output."""
        return [t + self.latency - self.T for t in range(1, self.T + 1)]

    @property
    def spikes_per_image(self) -> float:
        return self.spikes / self.images

    @property
    def rate(self) -> float:
        """Spikes per neuron and step of the whole network: layers are weighted by their neurons."""
        return self.spikes / (self.neurons * self.T) if self.neurons else 0.0

    @property
    def curve(self) -> list[float]:
        """The anytime curve: accuracy, or without labels, agreement with the ANN."""
        return self.accuracy or self.agreement

    @property
    def target(self) -> float | None:
        """The value that the curve is compared with: the ANN's accuracy, or full agreement; None without the ANN."""
        return self.ann if self.accuracy else 1.0

    def first_within(self, points: float) -> int | None:
        """The first step from which on the curve stays within `points` percentage points of the ANN."""
        if self.target is None:
            raise ConfigError("comparing with the ANN needs the ANN: give it to `evaluate`")
        return first_within(self.curve, self.target, points)


def first_within(curve: Sequence[float], target: float, points: float) -> int | None:
    """The first step (from 1) from which on no value is more than `points` below `target`; None if the last one is."""
    step = None
    for t in range(len(curve), 0, -1):
        if curve[t - 1] < target - points / 100 - EXACT:
            break
        step = t
    return step


def steps_needed(found: Iterable[Evaluation], points: float) -> Evaluation | None:
    """The T needed: the network with the fewest steps that ends within `points` of the ANN."""
    near = [e for e in found if e.first_within(points) is not None]
    return min(near, key=lambda e: e.T, default=None)


@dataclass
class Counts:
    """Counts over images. All are integers, so neither the order nor the number of processes matters."""

    T: int
    images: int = 0
    right: list[int] = field(default_factory=list)  # after every step
    correct: list[tuple[int, list[int]]] = field(default_factory=list)  # after the last step, from this image on
    agreed: list[int] = field(default_factory=list)
    ann_right: int = 0
    unlabelled: int = 0
    classes: int = 0
    spikes: dict[str, int] = field(default_factory=dict)
    neurons: dict[str, int] = field(default_factory=dict)
    settled: list[int] = field(default_factory=list)  # answers settled at each step, with early exit; and of those
    settled_right: list[int] = field(default_factory=list)
    settled_agreed: list[int] = field(default_factory=list)
    kept_right: list[int] = field(default_factory=list)  # after every step, keeping settled answers
    kept_agreed: list[int] = field(default_factory=list)

    def add(
        self,
        snn: SpikingNetwork,
        calls: Sequence[Tensor],
        meter: EnergyMeter,
        labels: Tensor | None,
        expected: Tensor | None,
        rule: ExitRule | None = None,
        early: EnergyMeter | None = None,
        first: int = 0,
    ) -> None:
        """Run some images, one call at a time, and count the answers; `expected` are the ANN's.

        `first` is the number of images before them. With a `rule` for early exit, `early` meters only the steps that
        are run.
        """
        chosen, settled = [], []
        for part in calls:
            run = snn.run(part)
            if rule is not None and early is not None:
                settled.append(rule.settled(run.outputs))
                _run_early(snn, part, settled[-1], run.spikes, early)
            if isinstance(run.outputs, Tensor) and run.outputs.ndim == 3:
                chosen.append(run.outputs.argmax(-1).cpu())
                self.classes = run.outputs.shape[-1]
            elif labels is not None or expected is not None:
                raise DataError("accuracy needs a network with one output of classes: use run() for other networks")
            meter.add((part,), run.spikes)
            for name, counts in run.spikes.items():
                self.spikes[name] = self.spikes.get(name, 0) + int(counts.sum())
                self.neurons[name] = self.neurons.get(name, 0) + counts.numel()
        count = sum(map(len, calls))
        self.images += count
        if not chosen:  # boxes, masks, several outputs: no answer to count
            self.unlabelled += count
            return
        found = torch.cat(chosen, 1)
        if settled:
            self._add_early(found, torch.cat(settled), labels, expected)
        if labels is None:
            self.unlabelled += count
        else:
            right = found == _checked(labels, self.classes)
            self.right = _added(self.right, right.sum(1).tolist())
            self.correct.append((first, right[-1].int().tolist()))
        if expected is not None:
            self.agreed = _added(self.agreed, (found == expected).sum(1).tolist())
            self.ann_right += 0 if labels is None else int((expected == labels.cpu()).sum())

    def so_far(self) -> str:
        """The accuracy after all steps, or the agreement, of the images so far; empty if neither is known."""
        for counted, said in ((self.right, "right"), (self.agreed, "as the ANN")):
            if counted and self.images:  # a batch may be empty
                return f"{100 * counted[-1] / self.images:.1f} % {said}"
        return ""

    def _add_early(self, found: Tensor, steps: Tensor, labels: Tensor | None, expected: Tensor | None) -> None:
        """Count answers `[T, N]` taken after these steps `[N]`."""
        T = len(found)
        taken = torch.minimum(torch.arange(1, T + 1)[:, None], steps) - 1  # the step of each answer
        kept = found.gather(0, taken)
        self.settled = _added(self.settled, torch.bincount(steps - 1, minlength=T).tolist())
        for wanted, end, curve in (
            (None if labels is None else labels.cpu(), "settled_right", "kept_right"),
            (expected, "settled_agreed", "kept_agreed"),
        ):
            if wanted is not None:
                same = kept == wanted
                at_end = torch.bincount(steps - 1, weights=same[-1].double(), minlength=T).long().tolist()
                setattr(self, end, _added(getattr(self, end), at_end))
                setattr(self, curve, _added(getattr(self, curve), same.sum(1).tolist()))

    def exits(self, snn: SpikingNetwork, rule: ExitRule, energy: Energy) -> Exits:
        """The effect of early exit."""
        curve = self.kept_agreed if self.unlabelled else self.kept_right
        return Exits(
            rule=rule,
            settled=self.settled,
            right=[] if self.unlabelled else self.settled_right,
            agreed=self.settled_agreed,
            curve=[count / self.images for count in curve],
            energy=energy,
            wait=snn.latency - snn.T,
        )

    def merge(self, other: "Counts") -> None:
        self.images += other.images
        for name in ("settled", "settled_right", "settled_agreed", "kept_right", "kept_agreed"):
            setattr(self, name, _added(getattr(self, name), getattr(other, name)))
        self.right, self.agreed = _added(self.right, other.right), _added(self.agreed, other.agreed)
        self.correct += other.correct
        self.ann_right += other.ann_right
        self.unlabelled += other.unlabelled
        self.classes = max(self.classes, other.classes)
        for own, more in ((self.spikes, other.spikes), (self.neurons, other.neurons)):
            own.update({name: own.get(name, 0) + count for name, count in more.items()})

    def evaluation(self, snn: SpikingNetwork, energy: Energy, compared: bool, exits: Exits | None = None) -> Evaluation:
        labelled = not self.unlabelled
        return Evaluation(
            T=self.T,
            images=self.images,
            accuracy=[count / self.images for count in self.right] if labelled else [],
            rates={name: self.spikes[name] / (self.neurons[name] * self.T) for name in self.spikes},
            agreement=[count / self.images for count in self.agreed] if compared else [],
            ann=self.ann_right / self.images if labelled and compared else None,
            energy=energy,
            spikes=sum(self.spikes.values()),
            neurons=sum(self.neurons.values()),
            classes=self.classes,
            latency=snn.latency,
            interval=snn.interval,
            exits=exits,
            correct=[bool(one) for _, some in sorted(self.correct) for one in some] if labelled else [],
        )


def _run_early(
    snn: SpikingNetwork, images: Tensor, steps: Tensor, spikes: dict[str, Tensor], meter: EnergyMeter
) -> None:
    """Meter images that stop after these steps `[N]`; `spikes` are those of all steps."""
    for t in steps.unique().tolist():
        leaving = (steps == t).nonzero()[:, 0].to(images.device)
        part = images[leaving]
        if t == snn.T:
            meter.add((part,), {name: counts[leaving] for name, counts in spikes.items()})
        else:  # every layer has run until the output has had its steps
            until = min(snn.T, t + snn.latency - snn.T)
            meter.add((part,), snn.counted(part, steps=t)[1], until)


def _added(one: Sequence[int], two: Sequence[int]) -> list[int]:
    """Sums after every step; an empty list stands for zeros."""
    return [a + b for a, b in zip_longest(one, two, fillvalue=0)]


def gives_classes(snn: SpikingNetwork, x: Tensor) -> bool:
    """Whether the output is one row of class scores per image."""
    home = next(snn.parameters())
    one, output = x[:1].to(home.device, home.dtype), snn.graph.output
    if snn.head is not None:  # only the head knows
        found = snn(one, steps=1)
        return isinstance(found, Tensor) and found.ndim == 2
    return isinstance(output, str) and len(shapes_of(snn.graph, (one,))[output]) == 2


def image_dims(graph: Graph) -> int | None:
    """Number of dimensions of one image, if a convolution tells."""
    weights = (node.op.tensors()["weight"] for node in graph.nodes.values() if isinstance(node.op, Conv))
    return next((weight.ndim - 1 for weight in weights), None)


def _checked(labels: Tensor, classes: int) -> Tensor:
    if labels.ndim != 1 or labels.is_floating_point():
        raise DataError(f"labels must be one class number per image, not {labels.dtype} of shape {list(labels.shape)}")
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise DataError(f"there is a label {int(outside[0])}, but the network has classes 0 to {classes - 1}")
    return labels.cpu()


def answering(ann: nn.Module | Graph) -> Callable[[Tensor], Tensor]:
    """The ANN as a function from images to the classes it answers."""
    scores = scoring(ann)
    return lambda x: scores(x).argmax(-1).cpu()


def scoring(ann: nn.Module | Graph) -> Callable[[Tensor], Tensor]:
    """The ANN as a function from images to its outputs, one row of classes each."""
    run: Callable[[Tensor], Any] = ann.run if isinstance(ann, Graph) else ann
    tensors = (
        (t for node in ann.nodes.values() for t in node.op.tensors().values())
        if isinstance(ann, Graph)
        else ann.parameters()
    )
    like = next((t for t in tensors if t.is_floating_point()), torch.empty(0))

    @torch.no_grad()
    def scores(x: Tensor) -> Tensor:
        with in_eval_mode(ann), tensors_on(like.device):
            outputs = run(x.to(like.device, like.dtype))
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            raise DataError("accuracy needs a network with one output of classes: use run() for other networks")
        return outputs

    return scores


@contextmanager
def in_eval_mode(model: nn.Module | Graph) -> Iterator[None]:
    """Put the model into eval mode, and restore its mode afterwards."""
    training = [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def original(snn: SpikingNetwork, pipeline: dict[str, Any] | None = None) -> Graph | None:
    """The ANN that a network was made from, if the network still contains it: weights calibration replaces it.

    `pipeline` is how it was made, as plain data; a network from a file knows it.
    Thresholds, potentials and biases of neurons do not affect the ANN; the calibrated bias of an output is removed.
    """
    pipeline = snn.origin.pipelines.get(snn.T) if pipeline is None else pipeline
    if pipeline is None or Pipeline.from_dict(pipeline).learns:
        return None
    graph = snn.graph.clone()
    for node in graph.nodes.values():
        if isinstance(node.op, Joint):
            node.op.bias = None
    return graph


def same_weights(one: Graph, two: Graph) -> bool:
    """Whether two graphs of the same operations have the same weights, up to rounding."""
    for a, b in zip(one.nodes.values(), two.nodes.values(), strict=True):
        if isinstance(a.op, (Spike, Joint)):  # their parameters come from conversion
            continue
        theirs, others = a.op.tensors(), b.op.tensors()
        if theirs.keys() != others.keys():
            return False
        if not all(_same(tensor, others[name]) for name, tensor in theirs.items()):
            return False
    return True


def check_weights(name: str, given: Graph, kept: Graph | None) -> None:
    """Raise if a model has the operations of the converted one, but not its remaining weights."""
    if kept is not None and not same_weights(given, kept):
        raise ConfigError(f"{name} was made from other weights than this model has: give those with --weights")


def _same(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    if not one.is_floating_point() or not two.is_floating_point():
        return bool((one.cpu() == two.cpu()).all())
    near = max(SAME, *(4 * torch.finfo(t.dtype).eps for t in (one, two)))
    a, b = one.detach().cpu().double(), two.detach().cpu().double()
    return float((a - b).norm()) <= near * max(float(a.norm()), float(b.norm()))


def labelled_batches(data: Any, progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images and labels from tensors, a dataset or a loader."""
    for images, labels in batches(data, progress):
        if labels is None:
            raise DataError("evaluation needs labels: give batches of (images, labels)")
        yield images, labels


def batches(
    data: Any,
    progress: Progress | None,
    dims: int | None = None,
    *,
    workers: int = 0,
    note: Callable[[], str] = str,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Batches of images, with labels if there are any, from tensors, a dataset or a loader.

    `dims` is the number of dimensions of one image, if known, which tells a list of batches from one of images. The
    next batch of a dataset or loader is read while one is worked on; a dataset is read by `workers` processes, or
    by a thread if that is 0. `note` is shown with the progress, after images per second.
    """
    refuse_names(data)
    data = as_tensor(data)
    pair, reads, made = _pair(data), False, False
    if isinstance(data, Tensor):
        found: Iterable[Any] = data.split(BATCH)
        count = -(-len(data) // BATCH)
    elif pair is not None:
        images, labels = pair
        if len(images) != len(labels):
            raise DataError(f"there are {len(images)} images but {len(labels)} labels")
        found = zip(images.split(BATCH), labels.split(BATCH), strict=True)
        count = -(-len(images) // BATCH)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not is_list_of_batches(data, dims):
        found = loader = torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=workers)
        count, reads, made = len(loader), True, True
    elif isinstance(data, Iterable):
        found, count, reads = data, getattr(data, "__len__", lambda: 0)(), not isinstance(data, (list, tuple))
    else:
        raise DataError(f"evaluation needs images, with labels or without, not {type(data).__name__}")
    if workers and not made:
        raise ConfigError("workers are for datasets: tensors need none, and a loader has its own setting")
    if progress is not None:
        progress.phase("evaluate", count, None)
    seen, started = 0, time.perf_counter()
    for item in ahead(found) if reads else found:
        batch = _parts(item)
        seen += len(batch[0])
        yield batch
        if progress is not None:
            speed = f"{seen / (time.perf_counter() - started):.3g} images/s"
            progress.advance("  ".join(filter(None, (speed, note()))))
    if seen == 0:
        raise DataError("there are no images to evaluate on: the data is empty")


def _pair(data: Any) -> tuple[Tensor, Tensor] | None:
    """All images and all labels, if `data` is that and not two batches of images."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return None
    images, labels = as_tensor(data[0]), as_labels(data[1])
    if isinstance(images, Tensor) and images.ndim > 1 and isinstance(labels, list | tuple):
        raise DataError(f"labels must be whole numbers, one per image, not {labels[0]!r:.40}" if labels
                        else "there are no labels")  # fmt: skip
    tensors = isinstance(images, Tensor) and isinstance(labels, Tensor)
    return (images, labels) if tensors and images.ndim != labels.ndim else None


def _parts(item: Any) -> tuple[Tensor, Tensor | None]:
    item = as_tensor(item)
    if isinstance(item, Tensor):
        return item, None
    if isinstance(item, (tuple, list)) and item and isinstance(images := as_tensor(item[0]), Tensor):
        labels = as_labels(item[1]) if len(item) > 1 else None
        if labels is None or isinstance(labels, Tensor):
            return images, labels
    raise DataError("evaluation needs labels: give batches of (images, labels), or images alone with the ANN")
