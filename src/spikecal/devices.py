"""Devices: the requested one, and what `torch.set_default_device` must not change."""

import copy
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from spikecal.errors import ConfigError, first_line

Given = ParamSpec("Given")
Made = TypeVar("Made")
Placed = TypeVar("Placed", bound=nn.Module)
Device = str | torch.device | None  # what functions take as `device`; None means where things are
CPU = torch.device("cpu")


def device_of(name: Device) -> torch.device | None:
    """The device of that name; ConfigError if there is none here. None stays None."""
    if name is None:
        return None
    try:
        home = torch.device(name)
        torch.empty(1, device=home)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ConfigError(f"there is no device {str(name)!r} here: {first_line(error)}") from error
    if home.type == "meta":
        raise ConfigError("the meta device holds no values: use cpu, cuda or mps")
    return home


def best_device() -> torch.device:
    """An accelerator if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")


def placed(module: Placed, device: torch.device | None) -> Placed:
    """The module on the device: itself if it is there, else a copy. The original is left unchanged."""
    if device is None or all(t.device == device for t in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to(device)


def tensors_on(device: torch.device) -> AbstractContextManager[Any]:
    """Make tensors created without a device land on this one: models may rely on that.

    Nothing is entered if they do so anyway, since torch then intercepts every call.
    """
    return nullcontext() if torch.get_default_device() == device else device


def whatever_the_default(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function whose tensors are on the CPU unless it names a device, whatever `torch.set_default_device` says.

    Indices, random numbers and sums stay on the CPU, so that a seed gives the same numbers for every device.
    """

    @functools.wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with tensors_on(CPU):
            return function(*args, **kwargs)

    return wrapped
