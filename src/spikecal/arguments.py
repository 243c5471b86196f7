"""Check the arguments of `convert`, and work out what they mean for this model."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from spikecal.calibration.images import Inputs
from spikecal.choice.placement import steps_within
from spikecal.errors import ConfigError, ConversionError
from spikecal.graph.graph import Graph
from spikecal.graph.ops import MaxPool
from spikecal.memory import free_memory, parse_bytes
from spikecal.pipeline import Auto, Effort, Pipeline, Plan, resolve_plan
from spikecal.settings import whole

DEFAULT_T = 32
MOST_T = 1 << 20  # no rate-coded network needs more, and every layer's spikes are held for T steps
Choice = tuple[list[int], int | None]  # the T allowed for a network, and its latency; None means no more than T


def plan_of(pipeline: Plan | str, effort: Effort | None) -> Plan:
    """The pipeline, or AUTO with its effort."""
    plan = resolve_plan(pipeline)
    if effort is None:
        return plan
    if not isinstance(plan, Auto):
        raise ConfigError("effort is for AUTO, and this pipeline is fixed: leave out one of them")
    return replace(plan, effort=effort)


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ConversionError(
            type(model).__name__, "not a torch.nn.Module with Python code", "convert the module it was made from"
        )


def steps_of(T: int | Sequence[int]) -> list[int]:
    steps: list[Any] = list(T) if isinstance(T, Sequence | np.ndarray) and np.ndim(T) == 1 else [T]
    if not steps:
        raise ConfigError("T is an empty list: give at least one number of steps")
    found = set[int]()
    for t in steps:
        number = whole(t)
        if number is None or not 1 <= number <= MOST_T:
            raise ConfigError(f"T must be a number of steps from 1 to {MOST_T:,}, not {t!r}")
        found.add(number)
    return sorted(found)


def choices_of(T: int | Sequence[int] | None, latency: int | str | None) -> list[Choice]:
    """One choice per network: the T allowed, and the latency if its waits are to be placed within one."""
    if T is None:
        if latency is None:
            return [([DEFAULT_T], None)]
        bound = latency_of(latency, None)
        return [(steps_within(bound), bound)]
    bounds = {t: None if latency is None else latency_of(latency, t) for t in steps_of(T)}
    return [([t], bound if bound != t else None) for t, bound in bounds.items()]


def latency_of(latency: Any, T: int | None) -> int:
    """A latency in steps, from a number, a multiple of T ("2x") or T plus a number ("+10")."""
    number: int | None
    text = latency.strip().lower() if isinstance(latency, str) else ""
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?x|\+[0-9]{1,9}", text):
        if T is None:
            raise ConfigError(f"a latency of {text} needs a T: give T, or a latency in steps")
        number = T + int(text) if text.startswith("+") else int(Fraction(text[:-1]) * T)
    elif re.fullmatch(r"[0-9]{1,9}", text):
        latency = number = int(text)
    else:
        number = whole(latency)
    if number is None or not 1 <= number <= MOST_T:
        wanted = f"an integer from 1 to {MOST_T:,}, '2x' for twice T or '+10' for T + 10"
        raise ConfigError(f"latency must be {wanted}, not {latency!r}")
    if T is not None and number < T:
        raise ConfigError(f"a network for T={T} cannot have a latency of {number}: the output alone takes {T} steps")
    return number


def checked_number(name: str, value: Any, least: int, below: int | None = None) -> int:
    """`value` as an integer not below `least`."""
    number = whole(value)
    if number is None or number < least or (below is not None and number >= below):
        wanted = "a non-negative integer" if least == 0 else f"an integer of at least {least}"
        raise ConfigError(f"{name} must be {wanted}, not {value!r}")
    return number


def memory_of(memory: int | str | None, processes: int = 1, device: torch.device | None = None) -> int:
    """Bytes to use before going to disk, from a number or a size such as "2G".

    By default half of what is free on the device; on a CPU, the `processes` of this machine share it.
    """
    if memory is None:
        return free_memory(device, processes) // 2
    if not isinstance(memory, str):
        return checked_number("memory", memory, 0)
    try:
        return parse_bytes(memory)
    except ConfigError as error:
        raise ConfigError(f"memory: {error}") from error


def check_pools(graph: Graph, pipeline: Pipeline) -> None:
    """Raise if spikes that can be negative are max-pooled: running sums may fall, but a pool cannot retract spikes."""
    signed = pipeline.neuron.alphabet[0] < 0
    for node in graph.nodes.values():
        if signed and isinstance(node.op, MaxPool) and node.op.of == "spikes":
            found = f"a max-pool of {pipeline.neuron.name} neurons, whose spikes can be negative"
            raise ConversionError(node.name, found, "use average pools, or neurons without negative spikes")


def checked_keep(keep: Any) -> Sequence[str]:
    names = [keep] if isinstance(keep, str) else keep
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"keep must be a list of names of submodules, not {keep!r}")
    return names


def home_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device and precision to work in: the model's own, but at least float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type == "meta":
            raise ConversionError(name, "a tensor on the meta device, which has no data", "load the weights first")
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return torch.device("cpu"), torch.float32


def number_of_inputs(model: nn.Module) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return max(1, sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters))


def image_dims(model: nn.Module) -> int | None:
    """Number of dimensions of one image, by the first convolution: channels and two more in 2-D; None without one."""
    kinds = {nn.Conv1d: 2, nn.Conv2d: 3, nn.Conv3d: 4}
    found = (dims for module in model.modules() for kind, dims in kinds.items() if isinstance(module, kind))
    return next(found, None)


def example_of(images: list[Inputs]) -> Inputs:
    """Two images to trace with (the first twice, if it is the only one or the second differs in size)."""
    first = images[0]
    second = images[1] if len(images) > 1 and [x.shape for x in images[1]] == [x.shape for x in first] else first
    return tuple(torch.cat(pair) for pair in zip(first, second, strict=True))
