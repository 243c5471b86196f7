"""Real images for networks of the zoo: BN statistics estimated on them, and how far a spiking network is off."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import spikecal
from spikecal.calibration.threshold import MaxAct
from spikecal.data.card import Card
from spikecal.data.prepare import prepare
from spikecal.data.sets.demo import load_demo
from spikecal.pipeline import Pipeline


def photographs(count: int, size: int, mean: tuple[float, ...] = (0.485, 0.456, 0.406)) -> Tensor:
    """The first embedded images, scaled to `size` and normalised."""
    card = Card(name="test", size=(size, size), mean=mean, std=(0.229, 0.224, 0.225))
    return prepare(load_demo("train")[0][:count], card, "demo")


@torch.no_grad()
def estimate_statistics(model: nn.Module, images: Tensor) -> None:
    """Running means and variances from one batch.

    Shifts become 1. Untrained they are 0, half of the units are off, and every layer with BN then makes the angle
    between two values wider: twenty layers on, a network tells of the last bit of its input and of nothing else.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
        nn.init.ones_(norm.bias)
    model(images)
    model.eval()


@torch.no_grad()
def conversion_errors(model: nn.Module, images: Tensor, T: int) -> tuple[float, float]:
    """‖SNN − ANN‖ / ‖ANN − its mean‖ of the outputs after T/8 and T steps, calibrated and measured on the same images.

    An answer that is the same for all images is off by 1 or more, however close it is to all of them. Neither
    thresholds nor potentials depend on T here: the output after some steps is that of a network for so many.
    """
    pipeline = Pipeline(threshold=MaxAct(per="channel"), rounding="potential")
    outputs, expected = spikecal.convert(model, images, T, pipeline).snn.run(images).outputs, model(images)
    told_apart = (expected - expected.mean(0)).norm()
    early, late = (float((outputs[t - 1] - expected).norm() / told_apart) for t in (T // 8, T))
    return early, late
