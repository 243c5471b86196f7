"""Both sides of the bound in the paper's theorem, with exact Hessians.

For L(a) = ||x_n - a||^2 and H_l its Hessian with respect to the ANN's activation x_l the theorem says

    e_n' H_n e_n <= sum_l 2^(n-l+1) e_c,l' H_l e_c,l

Its proof uses the ReLU's derivative at the ANN's activations as its slope all the way to the SNN's. That holds
while no neuron is active in one network and silent in the other; otherwise the bound can fail, as H_l is then blind
to the effect of the SNN's error. What always holds is the same sum with the change of the output that each layer's
local error really causes, instead of its second-order estimate: with h_l the output of the ANN when continued from the
SNN's mean values up to stage l, e_n = sum_l (h_{l-1} - h_l), and 2^-1 + 2^-2 + ... < 1 gives by Cauchy and Schwarz

    2 ||e_n||^2 <= sum_l 2^(n-l+1) 2 ||h_{l-1} - h_l||^2

for any graph of stages, in running order. By the same argument, n instead of every 2^(n-l+1) is also a bound, and a far
smaller one in deep networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from spikecal.analysis.errors import StageRun, ann_graph, walk
from spikecal.errors import ConfigError
from spikecal.graph.graph import Graph
from spikecal.graph.ops import SignedSpike
from spikecal.graph.stages import Stage, partition
from spikecal.snn.execute import analog, shapes_of
from spikecal.snn.network import SpikingNetwork

LARGEST = 4096  # most elements of an activation whose Hessian is computed
SLACK = 1e-9  # of the larger side, for rounding


@dataclass(frozen=True)
class LayerTerm:
    """One layer's terms of the right sides, one number per image `[N]`, with their weight 2^(n-l+1).

    `hessian` belongs to the theorem, `exact` to the repaired bound. `flipped` counts neurons that are active in the ANN
    and silent in one of the ANNs continued from the SNN's mean values, or the other way round: without any, both are
    the same.
    """

    stage: str
    weight: float
    hessian: Tensor
    exact: Tensor
    flipped: Tensor


@dataclass(frozen=True)
class Bound:
    """`left` `[N]` is `e_n' H_n e_n` per image; the right sides are sums over `layers`."""

    left: Tensor
    layers: list[LayerTerm]

    @property
    def right(self) -> Tensor:
        return torch.stack([layer.hessian for layer in self.layers]).sum(0)

    @property
    def repaired(self) -> Tensor:
        return torch.stack([layer.exact for layer in self.layers]).sum(0)

    @property
    def uniform(self) -> Tensor:
        """The repaired right side with n instead of the powers of two."""
        return len(self.layers) * torch.stack([layer.exact / layer.weight for layer in self.layers]).sum(0)

    def holds(self, right: Tensor) -> Tensor:
        """For which images a right side is at least the left one `[N]`."""
        return self.left <= right + SLACK * torch.maximum(self.left, right)

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": len(self.left),
            "left": float(self.left.mean()),
            "right": float(self.right.mean()),
            "repaired": float(self.repaired.mean()),
            "uniform": float(self.uniform.mean()),
            "holds": int(self.holds(self.right).sum()),
            "repaired_holds": int(self.holds(self.repaired).sum()),
            "layers": [
                {
                    "stage": layer.stage,
                    "weight": layer.weight,
                    "hessian": float(layer.hessian.mean()),
                    "exact": float(layer.exact.mean()),
                    "flipped": float(layer.flipped.double().mean()),
                }
                for layer in self.layers
            ],
        }


def evaluate_bound(ann: nn.Module | Graph, snn: SpikingNetwork, *inputs: Tensor) -> Bound:
    """Both sides for every image, in float64. For small networks: each Hessian is computed in full."""
    if len(snn.graph.outputs()) != 1 or snn.head is not None:
        raise ConfigError("the bound needs a network with one output")
    graph = _double(ann_graph(ann, snn, [x[:1] for x in inputs]))
    spiking = SpikingNetwork(_double(snn.graph), snn.T, snn.waits)
    parts = [_one_image(graph, spiking, [x[i : i + 1].double() for x in inputs]) for i in range(len(inputs[0]))]
    lefts, terms = zip(*parts, strict=True)
    layers = [
        LayerTerm(same[0].stage, same[0].weight, *(torch.cat([getattr(t, f) for t in same]) for f in FIELDS))
        for same in zip(*terms, strict=True)
    ]
    return Bound(torch.stack(lefts), layers)


FIELDS = ("hessian", "exact", "flipped")


def _one_image(graph: Graph, snn: SpikingNetwork, image: list[Tensor]) -> tuple[Tensor, list[LayerTerm]]:
    stages, shapes = partition(graph), shapes_of(graph, image)
    names = [stage.name for stage in stages]
    runs: dict[str, StageRun] = dict(zip(names, walk(stages, snn, image, shapes), strict=True))
    values = dict(zip(graph.inputs(), image, strict=True))
    ann = values | {name: run.ann for name, run in runs.items()}
    means = values | {name: run.mean for name, run in runs.items()}
    (wanted,) = graph.outputs()
    output = ann[wanted]
    if names[-1] != wanted:
        raise ConfigError("the bound needs a network whose last stage is its output")

    def finish(known: dict[str, Tensor], start: int) -> dict[str, Tensor]:
        """The ANN's values, continued from known ones of the stages before `start`."""
        known = dict(known)
        for stage in stages[start:]:
            known[stage.name] = _ann_stage(stage, known, shapes)
        return known

    before, terms, n = output, [], len(stages)
    flipped = {name: torch.zeros_like(ann[name], dtype=torch.bool) for name in names}
    for i, stage in enumerate(stages):
        run, weight = runs[stage.name], 2.0 ** (n - i)
        local = run.on_spikes - run.mean
        if prod(local.shape) > LARGEST:
            raise ConfigError(
                f"{stage.name} has {prod(local.shape):,} elements, and Hessians are computed for up to {LARGEST:,}: "
                f"use a smaller network"
            )

        def loss(x: Tensor, i: int = i) -> Tensor:
            return (output - finish(ann | {names[i]: x}, i + 1)[wanted]).square().sum()

        hessian = torch.autograd.functional.hessian(loss, run.ann).reshape(local.numel(), -1)
        e = local.flatten()
        mixed = finish(means, i + 1)
        after = mixed[wanted]
        exact = 2 * (before - after).square().sum()
        kinked = stage.spiking and not isinstance(stage.end.op, SignedSpike)
        flips = flipped[stage.name].sum() if kinked else torch.zeros(())
        terms.append(
            LayerTerm(stage.name, weight, (weight * (e @ hessian @ e))[None], (weight * exact)[None], flips[None])
        )
        before = after
        for name in names[i + 1 :]:
            flipped[name] |= (mixed[name] > 0) != (ann[name] > 0)
    left = 2 * (output - means[wanted]).square().sum()  # H_n is twice the identity
    return left, terms


def _ann_stage(stage: Stage, values: dict[str, Tensor], shapes: Any) -> Tensor:
    return analog(stage, {name: values[name].unsqueeze(0) for name in stage.inputs}, shapes)[0]


def _double(graph: Graph) -> Graph:
    copy = graph.clone()
    for node in copy.nodes.values():
        node.op.double()
    return copy


def failing_case() -> tuple[nn.Module, Tensor, int, Sequence[float]]:
    """A network of two neurons for which the theorem's bound fails: model, image, T and thresholds.

    The first neuron's 1.1 is floored to 0.75. The second computes relu(1 - x): silent in the ANN, so its
    Hessian is 0, and 0.25 in the SNN. The left side is 2 * 0.25^2, the right side 0.
    """
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer, (weight, bias) in zip((model[0], model[2], model[4]), ((1.1, 0), (-1, 1), (1, 0)), strict=True):
        nn.init.constant_(layer.weight, weight)  # type: ignore[arg-type]
        nn.init.constant_(layer.bias, bias)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False), torch.ones(1, 1), 2, (1.5, 0.5)
