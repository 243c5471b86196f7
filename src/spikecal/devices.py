"""Devices: the one that is asked for, and what `torch.set_default_device` must not change."""

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
Device = str | torch.device | None  # what functions take as `device`; None is where things are
CPU = torch.device("cpu")


def device_of(name: Device) -> torch.device | None:
    """The device of that name; ConfigError where it is not here. None stays None."""
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
    """An accelerator where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")


def placed(module: Placed, device: torch.device | None) -> Placed:
    """The module where it is to be; it is copied if it has to be moved, and left as it is."""
    if device is None or all(t.device == device for t in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to(device)


def tensors_on(device: torch.device) -> AbstractContextManager[Any]:
    """In here tensors that are made without a device are on this one: code of models may rely on that.

    Where that is so anyway nothing is entered, since torch looks at every call in between.
    """
    return nullcontext() if torch.get_default_device() == device else device


def whatever_the_default(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """A function that makes tensors on the CPU where it names no device, whatever `torch.set_default_device` says.

    Indices, random numbers and sums are the CPU's, so that a seed gives the same numbers for every device.
    """

    @functools.wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with tensors_on(CPU):
            return function(*args, **kwargs)

    return wrapped
