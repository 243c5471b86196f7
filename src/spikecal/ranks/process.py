"""The ranks that this process belongs to, and how a command or a call becomes one of several."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from spikecal.errors import RankError, first_line
from spikecal.ranks.exchange import backend
from spikecal.ranks.group import Group
from spikecal.ranks.one import Ranks
from spikecal.ranks.watch import WAY_OUT

SCRATCH = "SPIKECAL_SCRATCH"  # an environment variable: the folder for what all ranks but the first write

P = ParamSpec("P")
R = TypeVar("R")

_apart: ContextVar[Ranks | None] = ContextVar("apart", default=None)


def current() -> Ranks:
    """The ranks of torch's default process group; a single rank without a group, or inside `apart`."""
    own = _apart.get()
    if own is not None:
        return own
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Ranks()
    return _group_of(dist.group.WORLD)


def writes() -> bool:
    """Whether this process writes results: the first rank does, and those with their own place for them."""
    several = _apart.get() is None and dist.is_available() and dist.is_initialized()
    return not several or dist.get_rank() == 0 or SCRATCH in os.environ


@lru_cache(maxsize=1)
def _group_of(world: Any) -> Group:
    return Group()


@contextmanager
def apart() -> Iterator[Ranks]:
    """Let this rank work alone, whatever the others do."""
    ranks = current().alone()
    token = _apart.set(ranks)
    try:
        yield ranks
    finally:
        _apart.reset(token)


def together(call: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that all ranks call with the same arguments; an error of one ends all."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with current().working():
            return call(*args, **kwargs)

    return run


@contextmanager
def process_group() -> Iterator[Ranks]:
    """The process group of a command started as one of several by torchrun, or anything that sets its variables."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        dist.init_process_group(backend())
    except (ValueError, RuntimeError) as error:
        raise RankError(f"the ranks cannot connect ({first_line(error)}): start them with torchrun") from error
    ranks = current()
    signal.signal(signal.SIGTERM, partial(_stop, ranks))
    with ranks.working():
        yield ranks
    dist.destroy_process_group()


def _stop(ranks: Ranks, *_: Any) -> None:
    told = f"stopped by SIGTERM, as launchers do when another rank has failed; {WAY_OUT}"
    raise RankError(told, tell=ranks.leave())
