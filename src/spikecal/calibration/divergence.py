"""How far a spiking network's outputs are from the ANN's, image by image: the criterion for choosing networks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spikecal.calibration.images import Inputs
from spikecal.graph.graph import Graph
from spikecal.ranks import Ranks
from spikecal.snn.network import SpikingNetwork

Outputs = Sequence[Mapping[str, Tensor]]  # of every batch: output -> `[N, ...]`


@torch.no_grad()
def ann_outputs(graph: Graph, batches: Sequence[Inputs]) -> Outputs:
    """The ANN's outputs, without an analog head."""
    wanted = set(graph.outputs())
    return [{name: value for name, value in graph.walk(*batch) if name in wanted} for batch in batches]


def divergences(
    network: SpikingNetwork, batches: Sequence[Inputs], targets: Outputs, ranks: Ranks | None = None
) -> Tensor:
    """How far a network is from `targets`: one number per image `[N]` in float64. Each of `ranks` runs some calls."""
    ranks = ranks or Ranks()
    parts = [part for batch, target in zip(batches, targets, strict=True) for part in _calls(network, batch, target)]
    found = [network.output_values(*parts[i][0]) for i in ranks.each(len(parts))]
    return distances(found, [target for _, target in parts], ranks)


def _calls(network: SpikingNetwork, batch: Inputs, target: Mapping[str, Tensor]) -> Iterator[tuple[Inputs, Any]]:
    """The images of each call, split as the network would split them."""
    size = network.images_per_call(*batch)
    for i in range(0, len(batch[0]), size):
        yield tuple(x[i : i + size] for x in batch), {name: value[i : i + size] for name, value in target.items()}


def distances(found: Outputs, targets: Outputs, ranks: Ranks | None = None) -> Tensor:
    """How far outputs are from targets: one number per image `[N]` in float64.

    For a single output of scores `[N, K]` it is KL(ANN || SNN) of the classes, otherwise the squared error over the
    variance of the ANN's output, summed over outputs. With several `ranks`, `found` is this rank's share of `targets`.
    """
    ranks = ranks or Ranks()
    variances = {} if are_scores(targets[0]) else {name: variance(name, targets) for name in targets[0]}
    own = (targets[i] for i in ranks.share(len(targets)))
    each = [divergence(target, out, variances) for target, out in zip(own, found, strict=True)]
    none = next(iter(targets[0].values())).new_empty(0, dtype=torch.float64)
    return ranks.joined(torch.cat([none, *each]))


def divergence(
    target: Mapping[str, Tensor], output: Mapping[str, Tensor], variances: Mapping[str, float], temperature: float = 1
) -> Tensor:
    """The divergence of each image of a batch `[N]`; without variances, that of scores."""
    if variances:
        return torch.stack([_squares(target[name], output[name]) / over for name, over in variances.items()]).sum(0)
    (name,) = target
    p, q = ((scores[name].double() / temperature).log_softmax(1) for scores in (target, output))
    return (p.exp() * (p - q)).sum(1)


def are_scores(outputs: Mapping[str, Tensor]) -> bool:
    """Whether outputs are those of a classifier: a single one, `[N, K]`."""
    (first, *others) = outputs.values()
    return not others and first.ndim == 2 and first.shape[1] > 1


def variance(name: str, targets: Outputs) -> float:
    """The variance of one of the ANN's outputs over all images; 1 if it is constant."""
    values = torch.cat([target[name].double().flatten() for target in targets])
    return (float(values.var()) if len(values) > 1 else 0.0) or 1.0


def _squares(target: Tensor, output: Tensor) -> Tensor:
    return (target - output).double().reshape(len(target), -1).square().mean(1)


def standard_error(differences: Tensor) -> float:
    """The standard error of the mean of paired differences; infinite if there are too few."""
    return float(differences.std()) / len(differences) ** 0.5 if len(differences) > 1 else float("inf")
