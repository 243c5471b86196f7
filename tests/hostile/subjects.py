"""The networks that hostile files start from: one has every operation, the other a complete record of its origin."""

import copy
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

import spikecal
from spikecal.data.card import Card
from spikecal.graph import ops
from spikecal.graph.graph import Graph, Node
from spikecal.graph.ops.shape import WHOLE
from spikecal.snn.checksum import checksum
from spikecal.snn.file import write
from spikecal.snn.network import SpikingNetwork
from spikecal.snn.origin import Origin


@dataclass
class Parts:
    """What a file is made of: its description and its tensors."""

    spec: Any
    tensors: dict[str, Tensor]

    def copy(self) -> "Parts":
        return Parts(copy.deepcopy(self.spec), dict(self.tensors))


def written(path: Path, parts: Parts) -> Path:
    """A file with these parts and the right checksum."""
    text = json.dumps(parts.spec)
    path.write_bytes(save(parts.tensors, {"spikecal": f"{checksum(text, parts.tensors.items())} {text}"}))
    return path


def made(path: Path) -> Parts:
    """The parts of a file."""
    with safe_open(path, "pt") as file:
        spec = json.loads(file.metadata()["spikecal"].partition(" ")[2])
        return Parts(spec, {name: file.get_tensor(name).clone() for name in file.keys()})  # noqa: SIM118


def subjects() -> list[Parts]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.snn"
        write(path, {2: every_operation(2), 4: every_operation(4)}, Origin(), {})
        first = made(path)
        converted().save(path)
        return [first, made(path)]


def every_operation(T: int) -> SpikingNetwork:
    """Images [N, 2, 8, 8] to 3 classes, through every operation of the closed set."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    two, one, none = (2, 2), (1, 1), (0, 0)
    window = {"kernel": two, "stride": two, "padding": none}
    around = {"stride": one, "dilation": one}
    apart = {"stride": two, "padding": none, "output_padding": none, "dilation": one}
    inner = ("slice", 1, ("+", 1, ("size", 1, 2)), 1)
    nodes = [
        ("x", ops.Input(index=0), []),
        ("stem.conv", ops.Conv(**around, padding=one, weight=numbers(4, 2, 3, 3), bias=numbers(4)), "x"),
        ("stem.act", neurons(v_init=numbers(4, 8, 8), bias=numbers(4) / 8), "stem.conv"),
        ("pool", ops.MaxPool(**window, dilation=one, of="spikes"), "stem.act"),
        ("mean", ops.AvgPool(**window), "stem.act"),
        ("back", ops.ConvTranspose(**apart, groups=2, weight=numbers(4, 2, 2, 2), bias=numbers(4)), "pool"),
        ("up", ops.Upsample(mode="bilinear", scale=(2, 2.0), align_corners=False), "mean"),
        ("up2", ops.Upsample(size=(("size", 1, 2), ("size", 1, 3))), "mean", "x"),
        ("sum", ops.Add(coefficients=(1, -0.5, 2)), "back", "up", "up2"),
        ("affine", ops.ChannelAffine(scale=numbers(1, 4, 1, 1), shift=numbers(1, 4, 1, 1)), "sum"),
        ("trunk", ops.Joint(bias=numbers(4)), "affine"),
        ("pad", ops.Pad(pad=(1, 1, 1, 1)), "trunk"),
        ("cut", ops.Slice(index=(WHOLE, WHOLE, inner, inner)), "pad", "x"),
        ("sent", ops.SignedSpike(theta=torch.ones(4), reach=torch.ones(T, 1)), "cut"),
        ("left", neurons(clip=6.0, step_bias=numbers(T, 4) / 8), "sent"),
        ("small", ops.AdaptiveAvgPool(size=(4, 4)), "trunk"),
        ("right", neurons(theta=torch.ones(1)), "small"),
        ("flat", ops.Flatten(), "right"),
        ("rows", ops.Reshape(shape=(("batch",), 4, ("//", ("size", 0, 1), 4))), "flat"),
        ("turned", ops.Permute(dims=(0, 2, 1)), "rows"),
        ("means", ops.Reduce(dims=(1,)), "turned"),
        ("sums", ops.Reduce(kind="sum", dims=(2, 3)), "left"),
        ("both", ops.Cat(dim=1), "sums", "means"),
        ("fc", ops.Linear(weight=numbers(3, 8), bias=numbers(3)), "both"),
        ("out", ops.Joint(bias=numbers(3)), "fc"),
    ]  # fmt: skip
    references = {"up2": ("x",), "cut": ("x",)}
    graph = Graph(output="out")
    for name, op, *inputs in nodes:
        names = tuple(i for i in inputs if isinstance(i, str))[: op.ARITY]
        graph.add(Node(name, op, names, references.get(name, ())))
    return SpikingNetwork(graph, T)


def neurons(**parameters: Any) -> ops.Spike:
    return ops.Spike(**{"theta": torch.tensor([0.5, 1.0, 1.5, 2.0]), **parameters})


def converted() -> spikecal.Result:
    """A conversion whose file holds as much as possible: waits and their search, records, histograms, figures."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(16, 3),
    ).eval()  # fmt: skip
    images = torch.randn(16, 2, 8, 8, generator=torch.Generator().manual_seed(1))
    result = spikecal.convert(model, images, T=[2, 4], latency="+2", pipeline="pc")
    card = Card(name="small", size=(8, 8), mean=(0.0, 0.0), std=(1.0, 1.0), classes=("a", "b", "c"), data="cifar10")
    score = {"score": 0.5, "agreement": 0.5, "energy_ratio": 0.3, "spikes": 10.0}
    measured = {"data": "cifar10", "split": "test", "images": 10, "ann": 0.9, "networks": {"2": score, "4": score}}
    tried = {"name": "LCP", "T": 2, "latency": 4, "divergence": 0.1, "gain": 0.0, "error": 0.0, "cost": 1.0}
    result.describe(
        card=card.to_dict(),
        measured=measured,
        choices={T: {"why": "it is the best", "effort": "low", "tried": [tried, tried]} for T in (2, 4)},
    )
    return result


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in nested lists and dicts: paths of keys and indices, containers included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))
