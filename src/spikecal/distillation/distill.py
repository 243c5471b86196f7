"""Make calibration images from networks alone: batch by batch, each determined by the seed, saved when finished."""

import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spikecal import __version__
from spikecal.arguments import checked_number, memory_of
from spikecal.data.card import Card
from spikecal.data.images import Data
from spikecal.data.prepare import prepare
from spikecal.devices import Device, device_of, whatever_the_default
from spikecal.distillation.inversion import Inversion, Losses, optimise
from spikecal.distillation.sheet import draw_sheet
from spikecal.distillation.teacher import Teacher
from spikecal.errors import ConfigError
from spikecal.files import write_whole
from spikecal.memory import free_memory
from spikecal.progress import Progress, Watching, watched
from spikecal.ranks import Ranks, current, together, writes
from spikecal.settings import whole
from spikecal.workdir import Workdir, fingerprint

IMAGES = 1024
BATCH, LEAST = 128, 16  # images optimised together: statistics of fewer than the least mean little
HELD = 2 << 30  # bytes of values that a default batch may keep for its gradient
PIXEL = 8  # bytes per value of the result while it is assembled
WORKING = 2  # peak memory of an iteration, as a multiple of the kept values
FEW_RIGHT = 0.5  # share of images recognised as their class, below which there is a warning


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """Images [N, C, H, W], uint8 if the card defines pixels, else floats in the network's units.

    `labels` are their target classes, None if the network has none; `losses` are of each batch.
    """

    images: Tensor
    labels: Tensor | None
    card: Card
    losses: tuple[Losses, ...]
    notes: tuple[str, ...]
    settings: Inversion
    seed: int
    batch: int  # most images that were optimised together
    networks: tuple[str, ...]  # by name, first the one they are for

    def inputs(self) -> Tensor:
        """The images normalised for `convert` and the network."""
        return prepare(self.images, self.card, "distilled")

    def data(self) -> Data:
        """The images as a dataset."""
        return Data(name="distilled", images=self.images, distilled=True)

    def facts(self) -> dict[str, Any]:
        """Facts about them, as plain values."""
        return {
            "images": len(self.images),
            "shape": list(self.images.shape[1:]),
            "type": str(self.images.dtype).removeprefix("torch."),
            "distilled from": list(self.networks),
            "spikecal": __version__,
            "seed": self.seed,
            "batch": self.batch,
            "settings": asdict(self.settings),
            "losses": [asdict(losses) for losses in self.losses],
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write an npz file with `images`, which `npz:PATH` reads, the target classes `targets` and, as JSON, `facts`.

        They are not called `labels`, as how many of them a network gets right says nothing about its accuracy.
        """
        if not writes():
            return
        arrays = {"images": self.images.numpy(), "facts": np.array(json.dumps(self.facts(), sort_keys=True))}
        if self.labels is not None:
            arrays["targets"] = self.labels.numpy()
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        write_whole(Path(path), packed.getvalue())

    def sheet(self, path: str | Path) -> int:
        """Write a PNG file with as many images as fit, side by side; returns how many."""
        picture, count = draw_sheet(self.images)
        if writes():
            write_whole(Path(path), picture)
        return count


Report = Callable[[int, int, Losses], None]  # a finished batch, the number of batches, and its losses


@whatever_the_default
@together
@torch.inference_mode(False)
def distill(
    model: nn.Module | Sequence[nn.Module],
    n: int = IMAGES,
    size: int | tuple[int, int] | None = None,
    *,
    card: Card | Sequence[Card] | None = None,
    channels: int | None = None,
    iterations: int | None = None,
    inversion: Inversion | None = None,
    batch: int | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    memory: int | str | None = None,
    progress: Watching = None,
    report: Report | None = None,
    device: Device = None,
) -> Distilled:
    """Make `n` images whose statistics at every BN of `model`, or of several models, are those of its training data.

    `size`: of the images, by default that of `card`, which also states the normalisation; of several networks,
    one each. `batch`: images optimised together. `workdir`: from where a killed run resumes. `memory`: bytes to use, by
    default what is free. `report` is called for each finished batch. `device`: where to
    work, by default where the model is.
    """
    settings = _settings(inversion, iterations)
    n, seed = checked_number("n", n, 1, 2**63), checked_number("seed", seed, 0, 2**63)
    teachers = _teachers(model, card, size, device_of(device))
    shape = (_channels(teachers[0], channels), *_size(teachers[0].card))
    ranks = current()
    room = free_memory(teachers[0].device, ranks.neighbours)
    room = room if memory is None else min(memory_of(memory), room)
    if n * math.prod(shape) * PIXEL > room:
        raise ConfigError(f"{n:,} images of shape {shape} do not fit into {_gigabytes(room)}: give a smaller n")
    batch = _batch(batch, sum(teacher.probe(shape) for teacher in teachers), room)
    notes = _notes(teachers)
    parts = _parts(n, batch)
    made = [max(count, min(LEAST, batch)) for count in parts]
    labels = _labels(sum(made), teachers[0].classes, seed)

    identity = partial(_identity, teachers, [asdict(settings), n, list(shape), made, seed])
    ranks.agree("distill", lambda: {**identity(), "working directory": workdir is not None})
    store = None
    if workdir is not None:
        store = Workdir(Path(workdir), fingerprint([], identity()), "distillation", ranks)
    with watched(ranks.shown(progress)) as watcher, store or nullcontext():
        run = _Run(teachers, settings, shape, seed, store, watcher, report, ranks)
        found = run.batches(parts, made, labels)
    images, kept, losses = (torch.cat([b[0] for b in found]), [b[1] for b in found], [b[2] for b in found])
    right = [one.right for one in losses if one.right is not None]
    if right and (share := sum(right) / len(right)) < FEW_RIGHT:
        notes.append(
            f"only {100 * share:.0f} % of the images are recognised as their target class: more iterations may help"
        )
    return Distilled(
        images=images,
        labels=None if labels is None else torch.cat(kept),
        card=teachers[0].card,
        losses=tuple(losses),
        notes=tuple(notes),
        settings=settings,
        seed=seed,
        batch=batch,
        networks=tuple(teacher.name for teacher in teachers),
    )


def _identity(teachers: Sequence[Teacher], settings: list[Any]) -> dict[str, Any]:
    """Everything the images depend on: a working directory belongs to one run, and ranks must agree on it."""
    tensors = [tensor for t in teachers for tensor in t.network.state_dict().values()]
    return {
        "version": [__version__, torch.__version__],
        "network": [[str(t.network), list(t.network.state_dict()), t.card.to_dict()] for t in teachers],
        "weights": fingerprint(tensors, []),
        "settings": settings,
    }


def _settings(inversion: Inversion | None, iterations: int | None) -> Inversion:
    if not isinstance(inversion, Inversion | None):
        raise ConfigError(f"inversion must be a spikecal.Inversion, not {type(inversion)}")
    settings = inversion or Inversion()
    return settings if iterations is None else replace(settings, iterations=iterations)


@dataclass
class _Run:
    """What all batches share."""

    teachers: list[Teacher]
    settings: Inversion
    shape: tuple[int, ...]
    seed: int
    store: Workdir | None
    progress: Progress
    report: Report | None
    ranks: Ranks
    seconds: float | None = None  # of the batch before

    def batches(self, parts: list[int], made: list[int], labels: Tensor | None) -> list[tuple[Tensor, Tensor, Losses]]:
        """Every batch, loaded if it is in the folder: images, labels (possibly empty) and losses.

        Batches are independent: each rank makes some, and saves them by itself.
        """
        own = replace(self, store=self.store and self.store.of(self.ranks.alone()))
        tensors: dict[str, Tensor] = {}
        reached: dict[str, Any] = {}
        for index in self.ranks.each(len(parts)):
            start = sum(made[:index])
            wanted = None if labels is None else labels[start : start + made[index]]
            images, kept, losses = own._batch(index, len(parts), parts[index], made[index], wanted)
            tensors |= {f"{index}:images": images, f"{index}:labels": kept}
            reached[str(index)] = asdict(losses)
            if self.report is not None:
                self.report(index + 1, len(parts), losses)
        found = {}
        for made_there, reached_there in self.ranks.gathered(tensors, reached):
            for index, losses in reached_there.items():
                images, kept = (made_there[f"{index}:{what}"] for what in ("images", "labels"))
                found[int(index)] = images, kept, Losses(**losses)
        return [found[index] for index in range(len(parts))]

    def _batch(
        self, index: int, of: int, count: int, size: int, labels: Tensor | None
    ) -> tuple[Tensor, Tensor, Losses]:
        key = f"batch{index:05d}"
        done = None if self.store is None else self.store.load(key)
        if done is not None:
            return done[0]["images"], done[0]["labels"], Losses(**done[1])
        self.progress.phase(f"batch {index + 1}/{of}", self.settings.iterations, self.seconds)
        started = time.perf_counter()
        pixels, losses = optimise(
            self.teachers, labels, (size, *self.shape), self.settings, _generator(self.seed, index),
            self._advance,
        )  # fmt: skip
        self.seconds = time.perf_counter() - started
        images = _stored(pixels[:count], self.teachers[0].card)
        kept = torch.empty(0, dtype=torch.int64) if labels is None else labels[:count].clone()
        if self.store is not None:
            self.store.save(key, {"images": images, "labels": kept}, asdict(losses))
        return images, kept, losses

    def _advance(self, loss: float) -> None:
        self.ranks.beat()
        self.progress.advance(f"loss {loss:.4f}")


def _teachers(
    model: nn.Module | Sequence[nn.Module], card: Card | Sequence[Card] | None, size: Any, device: torch.device | None
) -> list[Teacher]:
    models = [model] if isinstance(model, nn.Module) else list(model) if isinstance(model, Sequence) else [model]
    if not models:
        raise ConfigError("there is no network to distil from: give one, or a list")
    for one in models:
        if not isinstance(one, nn.Module) or isinstance(one, torch.jit.ScriptModule):
            raise ConfigError(f"images can be distilled from a torch.nn.Module with Python code, not from {type(one)}")
    cards = _cards(models, card, size)
    # all of them see the whole of an image made here
    teachers = [Teacher(c.name, m, replace(c, crop=1.0), device) for m, c in zip(models, cards, strict=True)]
    for teacher in teachers[1:]:
        teacher.to(teachers[0])
    return teachers


def _cards(models: Sequence[nn.Module], card: Card | Sequence[Card] | None, size: Any) -> list[Card]:
    """One card per network, the first with the requested size."""
    cards = [card] if isinstance(card, Card) else list(card or [])
    if not all(isinstance(one, Card) for one in cards):
        raise ConfigError(f"card must be a Card, or one per network, not {card!r}")
    if cards and len(cards) != len(models):
        raise ConfigError(f"there are {len(models)} networks but {len(cards)} cards: give one each")
    cards = cards or [Card(name=type(one).__name__) for one in models]
    if size is not None:
        sides = [whole(side) or 0 for side in (size if isinstance(size, Sequence) else (size, size))]
        if len(sides) != 2 or min(sides) < 1:
            raise ConfigError(f"size must be a side, or height and width, in pixels, not {size!r}")
        cards[0] = replace(cards[0], size=(sides[0], sides[1]))
    if len({one.mean is None for one in cards}) > 1:
        silent, other = (next(one for one in cards if (one.mean is None) == is_) for is_ in (True, False))
        raise ConfigError(f"{silent.name} does not state its normalisation, but {other.name} does: give cards")
    return cards


def _size(card: Card) -> tuple[int, int]:
    if card.size is None:
        raise ConfigError(f"{card.name} does not state the size of its images: give their size, a height and a width")
    return card.size


def _channels(teacher: Teacher, given: int | None) -> int:
    if given is not None:
        given = checked_number("channels", given, 1)
        if teacher.card.channels not in (None, given):
            raise ConfigError(f"channels is {given}, but the card of {teacher.name} says {teacher.card.channels}")
    first = next((m.in_channels for m in teacher.network.modules() if isinstance(m, nn.Conv2d)), None)
    found = given or teacher.card.channels or first
    if found is None:
        raise ConfigError(f"{teacher.name} has no convolution that tells how many channels images have: give channels")
    return found


def _batch(asked: int | None, bytes_an_image: int, room: int) -> int:
    """How many images are optimised together; the same on every machine, unless memory is too small."""
    if asked is not None:
        asked = checked_number("batch", asked, 1)
    batch = asked or max(LEAST, min(BATCH, HELD // bytes_an_image))
    needed = batch * bytes_an_image * WORKING
    if needed > room:
        raise ConfigError(
            f"{batch} images at a time need about {_gigabytes(needed)}, but there are {_gigabytes(room)}: "
            f"give more memory, a smaller batch or a smaller size"
        )
    return batch


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB"


def _parts(n: int, batch: int) -> list[int]:
    """`n` split into as few batches as possible, with sizes that differ by at most one."""
    count = -(-n // batch)
    return [n // count + (index < n % count) for index in range(count)]


def _labels(count: int, classes: int | None, seed: int) -> Tensor | None:
    """Every class equally often, in random order; with more classes than images, a random choice."""
    if classes is None:
        return None
    generator = _generator(seed, -1)
    if count < classes:
        return torch.randperm(classes, generator=generator)[:count]
    return (torch.arange(count) % classes)[torch.randperm(count, generator=generator)]


def _generator(seed: int, index: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _stored(pixels: Tensor, card: Card) -> Tensor:
    pixels = pixels.detach().cpu().contiguous()
    return pixels.float() if card.mean is None else (255 * pixels).round().clamp(0, 255).to(torch.uint8)


def _notes(teachers: Sequence[Teacher]) -> list[str]:
    first = teachers[0]
    notes = []
    if not any(teacher.norms for teacher in teachers):
        notes.append(WITHOUT_BN.format(name=first.name))
        if first.classes is None:
            notes.append(f"{first.name} has no target classes either: the images are pink noise")
    for teacher in teachers[1:]:
        if not teacher.norms and teacher.classes != first.classes:
            raise ConfigError(
                f"{teacher.name} has neither BN nor the classes of {first.name}, so it adds nothing: leave it out"
            )
        if teacher.classes != first.classes:
            notes.append(f"{teacher.name} does not have the classes of {first.name}: only its statistics are matched")
    if any(teacher.norms for teacher in teachers):
        notes += [f"{t.name} has no BN: only its classes are used as targets" for t in teachers if not t.norms]
        if first.classes is None:
            notes.append(f"{first.name} does not answer with one score per class: only statistics are matched")
    if first.card.mean is None:
        notes.append(f"{first.name} does not state its normalisation: the images are in its own units")
    return notes


# the figures: bench/results/distill.json
WITHOUT_BN = (
    "{name} has no BN, or BN that is folded or not called as a module: there are no statistics to match, only "
    "target classes (a ResNet-20 lost 10 points of accuracy to real images at T=4 without BN, 2 with it)"
)
