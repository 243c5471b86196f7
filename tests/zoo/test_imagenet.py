"""The ImageNet networks: sizes as published, and spiking networks that come close to them."""

import pytest
import torch
from photographs import conversion_errors, estimate_statistics, photographs
from torch import Tensor, nn

from spikecal.vision import vision
from spikecal.zoo.imagenet import MNASNet, MobileNet, RegNetX, ResNet34, VGG16ImageNet, regnet_stages
from spikecal.zoo.models import ZOO, build_model

IMAGENET = [name for name, entry in ZOO.items() if entry.classes == 1000]


def macs(model: nn.Module, size: int = 224) -> int:
    """Multiplications of convolutions and linear layers for one image, from the shapes they put out."""
    total = 0

    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += output[0].numel() * layer.weight[0].numel()  # type: ignore[operator, index]

    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    model.eval()(torch.zeros(1, 3, size, size, device="meta"))
    return total


@pytest.mark.parametrize(
    ("make", "parameters", "giga_macs"),
    [
        # timm's table of results, resnet34d (whose other shortcuts cost the same); exact number by hand: torchvision's
        # ResNet-34 has 21,797,672, of which the 7×7 layer with its norm 9,536, and the three that replace it 28,768.
        (ResNet34, 21_816_904, 3.91),
        # torchvision's documentation of VGG16_BN_Weights and VGG16_Weights: 138,365,992 and 138,357,544, 15.47 GFLOPS
        (VGG16ImageNet, 138_365_992, 15.47),
        (lambda: VGG16ImageNet(bn=False), 138_357_544, 15.47),
        # Howard et al. 2017, table 8: 4.2 million, 569 million; exact number: pytorchcv's table, mobilenet_w1
        (MobileNet, 4_231_976, 0.569),
        # torchvision's documentation of MNASNet1_0_Weights and MNASNet1_3_Weights
        (lambda: MNASNet(1.0), 4_383_312, 0.314),
        (lambda: MNASNet(1.3), 6_282_256, 0.526),
        # Radosavovic et al. 2020, table 3: 22.1 million, 4.0 GF; exact number: timm's regnetx_040
        (RegNetX, 22_118_248, 3.99),
        # torchvision's documentation of RegNet_X_400MF_Weights: another set of the parameters
        (lambda: RegNetX(22, 24, 24.48, 2.54, 16), 5_495_976, 0.41),
    ],
)
def test_parameters_and_macs_are_the_literatures(make, parameters: int, giga_macs: float) -> None:
    with torch.device("meta"):
        model = make()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert macs(model) / 1e9 == pytest.approx(giga_macs, rel=0.015)


def test_regnet_stages_are_the_published_ones() -> None:
    # widths and depths of RegNetX-4GF, figure 16 of the paper
    assert regnet_stages(23, 96, 38.65, 2.43, 40) == [(80, 2), (240, 5), (560, 14), (1360, 2)]


def test_mnasnet_is_torchvisions_at_width_two() -> None:
    """There are no published figures for it: the other implementation is the oracle."""
    torch.manual_seed(0)
    ours, theirs = MNASNet(2.0), vision("torchvision.models").MNASNet(2.0)
    images = photographs(8, 32)
    estimate_statistics(ours, images)
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        assert torch.allclose(ours(images), theirs.eval()(images), atol=1e-4)


def test_without_bn_there_is_none() -> None:
    for name in (n for n in IMAGENET if n.endswith("-nobn")):
        with torch.device("meta"):
            assert not any(isinstance(m, nn.BatchNorm2d) for m in ZOO[name].make().modules())


@pytest.mark.parametrize("name", IMAGENET)
def test_spiking_network_approaches_the_original(name: str) -> None:
    """At 32×32 (VGG then spreads its last map over the 7×7 its linear layers take); deep networks need more steps."""
    torch.manual_seed(0)
    model, card = build_model(name)
    assert card.size == (224, 224)
    estimate_statistics(model, photographs(32, 32))
    count, T = (2, 64) if name.startswith("vgg") else (4, 256)
    early, late = conversion_errors(model, photographs(count, 32), T)
    assert late < 0.4
    assert late < 0.5 * early
