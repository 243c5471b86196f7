"""Methods that learn from labels: surrogate gradients after conversion, and clips that a network is trained with."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from spikecal.calibration.finetune import FineTune
from spikecal.calibration.images import Inputs
from spikecal.calibration.whole import State, Whole
from spikecal.errors import ConfigError, DataError
from spikecal.graph.graph import Graph
from spikecal.graph.ops import Joint, Spike
from spikecal.snn.trainable import Trainable, triangle


@dataclass(frozen=True)
class SinceLastSpike:
    """`alpha exp(-beta d)`, d the steps since the neuron's last spike; 0 for one that has not fired yet."""

    alpha: float
    beta: float

    def over_time(self, levels: Tensor) -> Tensor:
        """The slopes of all steps, by the levels `[T, N, ...]`."""
        slopes = torch.zeros(levels.shape, device=levels.device)
        slope = torch.zeros_like(slopes[0])
        decay = torch.exp(torch.tensor(-self.beta, device=levels.device))
        for t in range(1, len(levels)):
            slope = torch.where(levels[t - 1] != 0, self.alpha * decay, slope * decay)
            slopes[t] = slope
        return slopes


@dataclass(frozen=True, kw_only=True)
class HybridTraining(FineTune):
    """Adam on the cross-entropy of the spiking network's own outputs, over its weights and biases, by labels.

    Gradients go through all T steps; a spike has the slope `alpha exp(-beta d)`, d the steps since the last one
    (`stdb`; Rathi et al., Enabling deep spiking neural networks with hybrid conversion and spike timing dependent
    backpropagation, ICLR 2020), or `alpha max(0, 1 - |d|)`, d the distance from theta (`linear`, the default of its
    later code). Thresholds stay. Theirs is 20 epochs of all training images, on networks with dropout and leaks.
    """

    images: int = 8192
    iterations: int = 600
    batch: int = 32
    lr: float = 1e-4
    temperature: float = 1.0
    surrogate: Literal["stdb", "linear"] = "stdb"
    alpha: float = 0.3
    beta: float = 0.01
    label = "hybrid training"
    needs_labels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.surrogate not in ("stdb", "linear"):
            raise ConfigError(f"the surrogate must be stdb or linear, not {self.surrogate!r}")
        if not (self.alpha > 0 and self.beta >= 0):
            raise ConfigError(f"alpha must be positive and beta at least 0, not {self.alpha} and {self.beta}")

    def passes(self, images: int, T: int) -> float:
        """Every iteration goes forward and backward through all steps."""
        return 3.0 * T * self.iterations * min(self.batch, images)

    def _values(self, whole: Whole) -> dict[str, Tensor]:
        return {
            f"{node.name}:{name}": tensor.detach().clone()
            for node in whole.network.graph.nodes.values()
            if not isinstance(node.op, (Spike, Joint))
            for name, tensor in node.op.tensors().items()
        }

    def _gradients(self, whole: Whole, state: State, number: int) -> dict[str, Tensor]:
        by_time = SinceLastSpike(self.alpha, self.beta)
        module = Trainable(whole.network, by_time if self.surrogate == "stdb" else partial(_scaled, self.alpha))
        nodes = module.snn.graph.nodes
        values = {key.removeprefix("value/"): value for key, value in state.items() if key.startswith("value/")}
        learned = {}
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        for key, value in values.items():
            name, _, tensor = key.rpartition(":")
            parameter = getattr(nodes[name].op, tensor)
            parameter.data = value.clone()
            learned[key] = parameter.requires_grad_()
            parameter.grad = torch.zeros_like(parameter)
        for inputs, share, chosen in self._batch(whole, number, whole.network.T):
            with torch.enable_grad():
                (share * by_labels(whole, module(*inputs), chosen, self.temperature).mean()).backward()
        whole.add_up([parameter.grad for parameter in learned.values() if parameter.grad is not None])
        return {key: parameter.grad for key, parameter in learned.items() if parameter.grad is not None}

    def finish(self, whole: Whole, state: State) -> Graph:
        home = whole.images[0][0].device
        for key, value in state.items():
            part, _, name = key.partition("/")
            if part == "value":
                node, _, tensor = name.rpartition(":")
                getattr(whole.network.graph.nodes[node].op, tensor).data = value.to(home)
        return whole.aim


@dataclass(frozen=True, kw_only=True)
class LearnedClips(FineTune):
    """Adam on the cross-entropy of the network with activations of `levels` steps, over weights, biases and thresholds.

    Activations are `theta clip(floor(levels z/theta + 1/2)/levels, 0, 1)`, straight through the floor, and theta is
    learned for each layer as the clip of its activation; a spiking network then takes it as its threshold, with
    v(0) = theta/2, for any T (QCFS: Bu et al., Optimal ANN-SNN conversion for high-accuracy and ultra-low-latency
    spiking neural networks, ICLR 2022). There networks are trained so from the start, for 300 epochs; here one that
    is trained is trained on, with its batch normalisation folded. `clip_lr` is the rate of log theta.
    """

    images: int = 8192
    iterations: int = 600
    batch: int = 64
    temperature: float = 1.0
    levels: int = 8
    clip_lr: float = 1e-2
    label = "learned clips"
    needs_labels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels < 1:
            raise ConfigError(f"an activation needs at least one level, not {self.levels}")
        if not self.clip_lr > 0:
            raise ConfigError(f"the learning rate must be positive, not {self.clip_lr}")

    def passes(self, images: int, T: int) -> float:
        return 3.0 * self.iterations * min(self.batch, images)

    def _steps(self, whole: Whole) -> int:
        return self.levels

    def _share_of_rate(self, key: str) -> float:
        return self.clip_lr / self.lr if key.endswith(":theta") else 1.0

    def _loss(
        self, whole: Whole, inputs: Inputs, chosen: Tensor, found: dict[str, Tensor], variances: dict[str, float]
    ) -> Tensor:
        return by_labels(whole, whole.network.graph.finish(found.__getitem__), chosen, self.temperature)


def by_labels(whole: Whole, found: object, chosen: Tensor, temperature: float) -> Tensor:
    """`[N]`: the cross-entropy of outputs with the labels of these images."""
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise DataError("learning from labels needs a network with one output of classes")
    assert whole.labels is not None
    labels = whole.labels[chosen]
    if int(labels.min()) < 0 or int(labels.max()) >= found.shape[1]:
        raise DataError(
            f"labels are {int(labels.min())} to {int(labels.max())}, but the network has {found.shape[1]} classes"
        )
    return F.cross_entropy(found / temperature, labels.to(found.device), reduction="none")


def _scaled(alpha: float, distance: Tensor) -> Tensor:
    return alpha * triangle(distance)
