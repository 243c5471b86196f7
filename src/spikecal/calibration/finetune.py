"""Fine-tuning: the ANN distilled into the quantised network, without labels, before neurons are calibrated."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spikecal.calibration.augment import moved
from spikecal.calibration.divergence import ann_outputs, are_scores, divergence, variance
from spikecal.calibration.images import Inputs, batches
from spikecal.calibration.quantised import learnable, learned_by, output_values, put_into, quantised
from spikecal.calibration.samples import LEARNED_FLOATS
from spikecal.calibration.whole import NetworkPhase, State, Whole
from spikecal.errors import ConfigError
from spikecal.graph.graph import Graph
from spikecal.graph.passes import update_pool_units

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's own


@dataclass(frozen=True, kw_only=True)
class FineTune(NetworkPhase):
    """Adam on the divergence of the quantised network's outputs from the ANN's, over weights, biases and log theta.

    Activations are `theta/T clip(floor(T z/theta + 1/2), 0, T)` with a straight-through gradient, so an iteration is
    one pass, not T. For a classifier the loss is KL(ANN || quantised) of the classes at `temperature`, otherwise the
    squared error over the variance of the ANN's output. Both networks see the same images, shifted by up to `shift` of
    their shorter side and flipped at random. The rate falls to zero along a cosine. Later sweeps aim at the
    quantised network's activations.
    """

    images: int = 1024
    iterations: int = 600
    batch: int = 64
    lr: float = 3e-4
    temperature: float = 2.0
    shift: float = 0.125
    flip: bool = True
    label = "fine-tuning"
    learns = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise ConfigError("fine-tuning needs a batch of at least one image")
        if not (self.lr > 0 and self.temperature > 0):
            raise ConfigError(f"rate and temperature must be positive, not {self.lr} and {self.temperature}")
        if not 0 <= self.shift <= 0.5:
            raise ConfigError(f"images must be shifted by at most half of their side, not by {self.shift} of it")

    @property
    def rounds(self) -> int:
        return self.iterations

    def passes(self, images: int, T: int) -> float:
        """Forward and backward take three passes, and the ANN one more."""
        return 4 * self.iterations * min(self.batch, images)

    def start(self, whole: Whole) -> State:
        values = self._values(whole)
        mean, square = ({key: torch.zeros_like(value) for key, value in values.items()} for _ in range(2))
        targets = ann_outputs(whole.ann, batches(whole.images[: self.batch], self.batch, ()))
        variances = {} if are_scores(targets[0]) else {name: variance(name, targets) for name in targets[0]}
        scales = {name: torch.tensor(found, dtype=torch.float64) for name, found in variances.items()}
        return _whole_state({"value": values, "mean": mean, "square": square, "variance": scales})

    def advance(self, whole: Whole, state: State, number: int) -> State:
        state = {key: value.to(whole.images[0][0].device) for key, value in state.items()}
        rate = self.lr * (1 + math.cos(math.pi * number / self.iterations)) / 2
        result = {"variance": _part(state, "variance"), "value": {}, "mean": {}, "square": {}}
        for key, gradient in self._gradients(whole, state, number).items():
            value, mean, square = (state[f"{part}/{key}"] for part in ("value", "mean", "square"))
            step, mean, square = _adam(mean, square, gradient, number + 1)
            moved_by = rate * self._share_of_rate(key) * step
            result["value"][key], result["mean"][key], result["square"][key] = value - moved_by, mean, square
        return _whole_state(result)

    def _values(self, whole: Whole) -> dict[str, Tensor]:
        """What is learned, as it is before."""
        return learnable(whole.network.graph, self._steps(whole), whole.set_threshold)

    def _steps(self, whole: Whole) -> int:
        """How many levels an activation of the quantised network has."""
        return whole.network.T

    def _share_of_rate(self, key: str) -> float:
        """By what the rate is multiplied for one of the values."""
        return 1.0

    def _loss(
        self, whole: Whole, inputs: Inputs, chosen: Tensor, found: dict[str, Tensor], variances: dict[str, float]
    ) -> Tensor:
        """`[N]`, of images moved; `chosen` are their places among all."""
        (target,) = ann_outputs(whole.ann, [inputs])
        with torch.enable_grad():
            return divergence(target, found, variances, self.temperature)

    def _gradients(self, whole: Whole, state: State, number: int) -> dict[str, Tensor]:
        """The gradient of the mean divergence of one batch in all learned parameters."""
        values = _part(state, "value")
        variances = {name: float(found) for name, found in _part(state, "variance").items()}
        graph = quantised(whole.network.graph, self._steps(whole), values, whole.set_threshold)
        learned = learned_by(graph, values)
        for parameter in learned.values():
            parameter.requires_grad_()
            parameter.grad = torch.zeros_like(parameter)  # for parameters that no output depends on
        for inputs, share, chosen in self._batch(whole, number):
            with torch.enable_grad():
                found = self._loss(whole, inputs, chosen, output_values(graph, *inputs), variances)
                if found.requires_grad:
                    (share * found.mean()).backward()
        whole.add_up([parameter.grad for parameter in learned.values() if parameter.grad is not None])
        # thresholds are learned as logarithms
        inner = {key: parameter.detach() if key.endswith(":theta") else 1 for key, parameter in learned.items()}
        return {key: parameter.grad * inner[key] for key, parameter in learned.items() if parameter.grad is not None}

    def finish(self, whole: Whole, state: State) -> Graph:
        graph = whole.network.graph
        values = {key: value.to(whole.images[0][0].device) for key, value in _part(state, "value").items()}
        aim = quantised(graph, whole.network.T, values, whole.set_threshold)
        put_into(graph, aim, whole.set_threshold)
        update_pool_units(graph, whole.network.course(whole.images[0]).shapes)
        return aim

    def _batch(self, whole: Whole, number: int, steps: int = 1) -> Iterator[tuple[Inputs, float, Tensor]]:
        """This process's images of a batch, in as few parts as memory for the activations of `steps` steps allows.

        With each part come its share of the batch, and the places of its images among all.
        """
        generator = torch.Generator().manual_seed((1_000_003 * whole.seed + number) % 2**63)
        groups: dict[tuple[torch.Size, ...], list[int]] = {}
        for place, image in enumerate(whole.images):
            groups.setdefault(tuple(x.shape for x in image), []).append(place)
        sizes = torch.tensor([float(len(group)) for group in groups.values()])
        group = list(groups.values())[int(torch.multinomial(sizes, 1, generator=generator))]
        chosen = torch.tensor(group)[torch.randperm(len(group), generator=generator)[: self.batch]]
        seed = int(torch.randint(2**62, (), generator=generator))
        inputs = tuple(
            moved(torch.cat(parts), self.shift, self.flip, seed)
            for parts in zip(*(whole.images[i] for i in chosen.tolist()), strict=True)
        )
        shapes = whole.network.course(inputs).shapes
        most = max(1, LEARNED_FLOATS // (steps * sum(math.prod(shape[1:]) for shape in shapes.values())))
        own = whole.share(len(chosen), turn=number)
        for *part, places in zip(*(x[own].split(most) for x in (*inputs, chosen)), strict=True):
            if len(places):
                yield tuple(part), len(places) / len(chosen), places


def _adam(mean: Tensor, square: Tensor, gradient: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """The direction of a step, and the new moments of the gradient (Kingma and Ba, 2015)."""
    first, second = BETAS
    mean = torch.lerp(mean, gradient, 1 - first)
    square = second * square + (1 - second) * gradient.square()
    size = (square / (1 - second**step)).sqrt() + EPSILON
    return mean / (1 - first**step) / size, mean, square


def _whole_state(parts: dict[str, dict[str, Tensor]]) -> State:
    return {f"{part}/{key}": tensor for part, tensors in parts.items() for key, tensor in tensors.items()}


def _part(state: State, name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
