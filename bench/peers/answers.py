"""How accurate networks are, and how many spikes they send."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peer import PART, SIZES, Net, Peer, Way
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import spikecal
from spikecal.data.prepare import Prepared
from spikecal.data.sources import load_data, subset
from spikecal.zoo.models import load_model

ROOT = Path(__file__).parents[2]
NETWORKS = {"resnet20": None, "vgg16-half": ROOT / "weights" / "vgg16-half.safetensors"}
STEPS = (4, 8, 16, 32)


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


def answers(peer: Peer, subject: Subject) -> dict[str, Any]:
    """Accuracy at each T, and the spikes of an image at the largest."""
    right: dict[str, float] = {}
    spikes = 0.0
    for steps in [[T] for T in STEPS] if peer.for_T else [STEPS]:
        net = peer.convert(subject.model, subject.calibration, max(steps))
        of, spikes = answered(peer, net, subject, steps)
        right |= of
    return {"accuracy": right, "spikes_per_image": spikes / len(subject.tested)}


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
