"""One small conversion that the tests of the report share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import residual
from report.browser import Page, chromium
from torch import nn

import spikecal
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.data.prepare import Loader, Prepared
from spikecal.graph.graph import Graph, Node, map_leaves
from spikecal.result import Result
from spikecal.snn.network import SpikingNetwork

STEPS = (4, 8)
CLASSES = ("ant", "bee", "cat", "dog", "elk")


@dataclass(frozen=True)
class Conversion:
    """A network, its conversion, the images it is tested on, and all of it as a file."""

    model: nn.Module
    result: Result
    data: Data
    card: Card
    path: Path

    def loader(self) -> Loader:
        return Loader(self.data, self.card, 250)

    def images(self) -> torch.Tensor:
        return next(iter(self.loader()))[0]


@pytest.fixture(scope="session")
def conversion(tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    model = residual()
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(0, 256, (150, 3, 12, 12), generator=generator, dtype=torch.uint8)
    card = Card(name="small", size=(12, 12), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    prepared = Prepared(Data(name="noise", images=pixels), card)
    # labels are the network's answers with few exceptions, so that it is accurate
    labels = model(torch.stack([prepared[i] for i in range(len(pixels))])).argmax(-1)
    labels[::7] = (labels[::7] + 1) % len(CLASSES)
    data = Data(name="noise", images=pixels, labels=labels, classes=CLASSES)
    result = spikecal.convert(model, prepared, T=list(STEPS), pipeline="lcp")
    result.describe(card=card.to_dict())
    path = tmp_path_factory.mktemp("report") / "net.snn"
    result.save(path)
    return Conversion(model, result, data, card, path)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


def network_of(content: dict[str, Any], T: int) -> dict[str, Any]:
    return next(network for network in content["networks"] if network["T"] == T)


def rename(network: SpikingNetwork, names: Mapping[str, str]) -> SpikingNetwork:
    """The same network, some of its nodes under other names; it knows nothing of its making."""

    def new(name: str) -> str:
        return names.get(name, name)

    graph = Graph(output=map_leaves(new, network.graph.output))
    for node in network.graph.nodes.values():
        inputs, shapes = (tuple(map(new, old)) for old in (node.inputs, node.shape_refs))
        graph.add(Node(new(node.name), node.op, inputs, shapes))
    return SpikingNetwork(graph, network.T)


HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="session")
def hostile(conversion: Conversion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with layer names that a careless page would run as code."""
    network = spikecal.load(conversion.path, T=8)
    renamed = {name: f"{HOSTILE}{i}" for i, name in enumerate(network.graph.nodes)}
    bad = rename(network, renamed)
    origin = network.origin
    records = [{**record, "stage": renamed[record["stage"]], "notes": [HOSTILE]} for record in origin.records]
    card = {**(origin.card or {}), "name": HOSTILE + "\ud800", "data": HOSTILE}
    bad.origin = origin.changed(records=tuple(records), card=card)
    path = tmp_path_factory.mktemp("hostile") / "<b>bad.snn"
    bad.save(path)
    return path
