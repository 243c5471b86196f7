"""Run exported ONNX files in onnxruntime, including the spikes of all layers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spikecal.export.netlist import Netlist
from spikecal.export.onnx import states, step_path
from spikecal.export.packages import package
from spikecal.export.simulate import Trains


def run_steps(path: Path, netlist: Netlist, images: Tensor) -> Trains:
    """The model of one step beside `path`, run for all steps; its layers become outputs for that."""
    model = package("onnx").load(step_path(path))
    layers = [node.name for node in netlist.neurons()]
    known = {info.name: info for info in model.graph.value_info}
    model.graph.output.extend(known[name] for name in layers)
    session = _session(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    feed: dict[str, Any] = {
        name: np.zeros((len(images), *shape), dtype=np.float32) for name, shape in states(netlist).items()
    }
    feed |= {"step": np.zeros(1, dtype=np.int64)} if netlist.timed else {}
    steps: list[dict[str, Any]] = []
    for _ in range(netlist.latency):
        found = dict(zip(names, session.run(names, {"image": images.numpy(), **feed}), strict=True))
        feed = {name: found[f"{name}.next"] for name in feed}
        steps.append({name: found[name] for name in ("current", *layers)})
    outputs = torch.stack([torch.from_numpy(step["current"]) for step in steps])
    levels = {name: torch.stack([torch.from_numpy(step[name]) for step in steps]).to(torch.int8) for name in layers}
    return Trains(outputs, levels)


def run_whole(path: Path, images: Tensor) -> Tensor:
    """The model of all steps: its answers."""
    (output,) = _session(path.read_bytes()).run(["output"], {"image": images.numpy()})
    return torch.from_numpy(output)


def _session(model: bytes) -> Any:
    runtime = package("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
