"""Architectures of torchvision, timm and pytorchcv: all lowered, converted and run."""

import pytest
import torch
from photographs import conversion_errors, estimate_statistics, photographs

from spikecal.graph.graph import apply_node
from spikecal.graph.lowering.lower import lower
from spikecal.graph.ops import Spike, frozen
from spikecal.graph.stages import with_joints
from spikecal.snn.network import SpikingNetwork
from spikecal.zoo.models import build_model

# Side of the images: the smallest each takes without trouble. pytorchcv's ImageNet networks end in a 7×7 pool.
CONVERT = {
    "torchvision:densenet121": 32, "torchvision:googlenet": 48, "torchvision:inception_v3": 80,
    "torchvision:mnasnet0_5": 32, "torchvision:mobilenet_v2": 32, "torchvision:regnet_x_400mf": 32,
    "torchvision:resnet18": 32, "torchvision:resnet50": 32, "torchvision:resnext50_32x4d": 32,
    "torchvision:shufflenet_v2_x0_5": 64, "torchvision:squeezenet1_1": 64, "torchvision:vgg11_bn": 32,
    "torchvision:wide_resnet50_2": 32,
    "timm:dla46_c": 32, "timm:dpn68": 32, "timm:efficientnet_lite0": 32, "timm:hgnetv2_b0": 32,
    "timm:hrnet_w18_small": 32, "timm:mobilenetv1_100": 32, "timm:mobilenetv4_conv_small": 32, "timm:regnetx_002": 32,
    "timm:repvgg_a0": 32, "timm:res2net50_26w_4s": 32, "timm:resnet26d": 32, "timm:resnetblur18": 32,
    "timm:resnetv2_18": 32, "timm:tf_efficientnet_lite0": 32, "timm:tf_mobilenetv3_large_minimal_100": 32,
    "pytorchcv:densenet40_k12_cifar10": 32, "pytorchcv:mobilenet_wd4": 224, "pytorchcv:nin_cifar10": 32,
    "pytorchcv:octresnet10_ad2": 224, "pytorchcv:preresnet20_cifar10": 32, "pytorchcv:resnet20_cifar10": 32,
    "pytorchcv:resnext20_16x4d_cifar10": 32, "pytorchcv:shakeshakeresnet20_2x16d_cifar10": 32,
    "pytorchcv:squeezenet_v1_1": 224,
}  # fmt: skip


@pytest.mark.parametrize("spec", CONVERT)
def test_lowers_and_runs(spec: str) -> None:
    torch.manual_seed(0)
    model, _ = build_model(spec)
    images = photographs(3, CONVERT[spec])
    graph = with_joints(lower(model, (images[:2],)))
    values = dict.fromkeys(graph.inputs(), images)
    with torch.no_grad():
        expected = model(images)
        for node in graph.nodes.values():
            if node.inputs:
                values[node.name] = apply_node(node, values)
            if isinstance(node.op, Spike):
                node.op.theta = frozen(values[node.name].max().clamp(min=1e-6).reshape(1) / 4)
                node.op.v_init = frozen(node.op.theta / 2)
    # Lowering compared the two on the first images; this is another batch.
    assert float((values[graph.outputs()[0]] - expected).abs().max()) <= 1e-3 * float(expected.abs().max())
    snn = SpikingNetwork(graph, 2)
    run = snn.run(images)
    assert run.outputs.shape == (2, *expected.shape)
    assert bool(run.outputs.isfinite().all())
    assert all(0 <= int(counts.min()) and int(counts.max()) <= 2 for counts in run.spikes.values())
    assert any(int(counts.max()) > 0 for counts in run.spikes.values())


# With max-pools (of currents and of spikes), shuffled channels, linear trunks, dense concatenations, ReLU6.
LARGE_T = (
    "torchvision:shufflenet_v2_x0_5", "torchvision:mobilenet_v2", "torchvision:squeezenet1_1", "timm:resnetv2_18",
    "torchvision:densenet121",
)  # fmt: skip


@pytest.mark.parametrize("spec", LARGE_T)
def test_spiking_network_approaches_the_original(spec: str) -> None:
    torch.manual_seed(0)
    model, _ = build_model(spec)
    estimate_statistics(model, photographs(32, CONVERT[spec]))
    early, late = conversion_errors(model, photographs(4, CONVERT[spec]), 256)
    assert late < 0.4
    assert late < 0.5 * early
