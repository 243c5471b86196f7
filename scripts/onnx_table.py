"""Whether spikecal reads the ONNX files of the networks that convert: writes bench/results/onnx.json.

Each network of models.json that converts is made with random weights, written by torch.onnx, read back, compared
with onnxruntime and with the network itself, and lowered. Killed, it goes on where it was; `--again` starts anew.
"""

import argparse
import json
import logging
import re
import tempfile
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spikecal import __version__
from spikecal.errors import SpikecalError
from spikecal.files import write_whole
from spikecal.graph.lowering.lower import lower
from spikecal.graph.stages import partition, with_joints
from spikecal.zoo.models import build_model
from spikecal.zoo.onnx.read import read_onnx

ROOT = Path(__file__).parent.parent
MODELS, RESULTS = ROOT / "docs" / "reference" / "models.json", ROOT / "bench" / "results" / "onnx.json"
PACKAGES = ("torch", "torchvision", "timm", "pytorchcv", "onnx", "onnxruntime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="start anew")
    logging.disable(logging.WARNING)
    survey(converting(), RESULTS, again=parser.parse_args().again)


def converting() -> list[str]:
    """The networks that convert: the smallest of each family, then the second of each, and so on."""
    known = json.loads(MODELS.read_text())["models"]
    by_size = sorted((spec for spec in known if known[spec]["converts"]), key=lambda spec: known[spec]["parameters"])
    families = [re.match("[a-z]+", spec.partition(":")[2])[0] for spec in by_size]  # type: ignore[index]
    place = {spec: families[:i].count(families[i]) for i, spec in enumerate(by_size)}
    return sorted(by_size, key=place.__getitem__)


def survey(specs: Sequence[str], kept: Path, again: bool = False) -> None:
    """Look at every network that `kept` does not tell of yet."""
    versions = {"spikecal": __version__, **{package: version(package) for package in PACKAGES}}
    facts: dict[str, Any] = {"versions": versions, "models": {}}
    if kept.is_file() and not again:
        before = json.loads(kept.read_text())
        facts = before if before["versions"] == versions else facts
    for spec in specs:
        if spec not in facts["models"]:
            started = time.perf_counter()
            facts["models"][spec] = look(spec)
            write_whole(kept, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
            print(f"{spec}: {facts['models'][spec]} ({time.perf_counter() - started:.1f} s)", flush=True)
    facts["models"] = {spec: facts["models"][spec] for spec in specs}
    write_whole(kept, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def look(spec: str) -> dict[str, Any]:
    """What becomes of the file of one network; `off` is relative to the largest output."""
    torch.manual_seed(0)
    model, card = build_model(spec)
    x = torch.randn(2, 3, *(card.size or (224, 224)))
    with tempfile.TemporaryDirectory() as folder:
        path = write(model, Path(folder) / "net.onnx", x[:1])
        try:
            found, _ = read_onnx(path)
            stages = len(partition(with_joints(lower(found, (x,)))))
        except SpikecalError as error:
            return {"reads": False, "said": str(error).splitlines()[0].replace(str(path), "net.onnx")}
    with torch.no_grad():
        expected, got = (_flat(network(x)) for network in (model, found))
    off = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(got, expected, strict=True))
    return {"reads": True, "stages": stages, "off": float(f"{off:.1e}")}


def write(model: nn.Module, path: Path, example: Tensor) -> Path:
    """As most people do: torch's exporter that needs no other package, for any batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), str(path), dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )  # fmt: skip
    return path


def _flat(outputs: Any) -> list[Tensor]:
    """The tensors of a network's outputs, in the order of its file."""
    if isinstance(outputs, Tensor):
        return [outputs]
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    return [tensor for part in parts for tensor in _flat(part)]


if __name__ == "__main__":
    main()
