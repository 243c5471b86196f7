"""The training loop, one for all recipes and sources. It is reproducible to the bit and resumes after being killed."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spikecal.analysis.measures import from_stored, to_stored
from spikecal.data.card import Card
from spikecal.data.images import data_fingerprint
from spikecal.data.prepare import Loader
from spikecal.data.sources import Data
from spikecal.errors import ConfigError, DataError, FileError, TrainingError, first_line
from spikecal.evaluation import accuracy
from spikecal.progress import Progress, Silent
from spikecal.ranks import Refused, current, together
from spikecal.training import checkpoint as files
from spikecal.training.feed import Feed, logits, mixed
from spikecal.training.recipes import DetectionRecipe, Recipe
from spikecal.training.synced import synced
from spikecal.training.workers import worker_errors

log = logging.getLogger(__name__)

EVERY = 300.0  # seconds between checkpoints inside an epoch
EVALUATED = 250  # images per call


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One finished epoch: mean loss, last learning rate, and the score on held-out images, if any.

    The score is accuracy, or for a detector mAP at IoU 0.5.
    """

    epoch: int
    loss: float
    lr: float
    score: float | None
    seconds: float


@dataclass
class Training:
    """Everything that changes while training; `state` and `restore` are all a checkpoint needs."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    average: AveragedModel | None
    epoch: int = 0  # finished epochs
    step: int = 0  # finished steps of the current epoch
    loss: float = 0.0  # sum over these steps
    seconds: float | None = 0.0  # None if resumed from an old checkpoint without it
    history: list[EpochRecord] = field(default_factory=list)

    @classmethod
    def start(cls, model: nn.Module, recipe: Recipe) -> "Training":
        optimiser = _optimiser(model, recipe)
        average = None
        if recipe.ema > 0:
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.ema), use_buffers=True)
        return cls(model, optimiser, average)

    @property
    def result(self) -> nn.Module:
        """The network that is measured and exported: the averaged one, if any."""
        return self.model if self.average is None else self.average.module

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "ema": None if self.average is None else self.average.state_dict(),
            "history": [to_stored(asdict(record)) for record in self.history],
            **{name: getattr(self, name) for name in ("epoch", "step", "loss", "seconds")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from what `state` returned; LookupError, RuntimeError, TypeError or ValueError for anything else."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.average is not None:
            self.average.load_state_dict(state["ema"])
        self.history = [EpochRecord(**from_stored(record)) for record in state["history"]]
        for name in ("epoch", "step", "loss", "seconds"):
            setattr(self, name, state[name])


def _optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    if isinstance(recipe, DetectionRecipe) and recipe.optimiser == "adamw":
        betas = recipe.momentum, 0.999
        return torch.optim.AdamW(model.parameters(), recipe.lr, betas, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(
        model.parameters(),
        recipe.lr,
        recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )


class Source(Protocol):
    """What a network is trained on: batches, and the loss of a batch."""

    name: str  # the network's
    steps: int  # per epoch

    @property
    def recipe(self) -> Recipe: ...

    def batches(self, epoch: int, first: int = 0) -> Iterator[Any]:
        """The epoch's batches from step `first` on, which depend on (seed, epoch, step) and nothing else."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor: ...


def train(
    model: nn.Module,
    data: Data,
    card: Card,
    recipe: Recipe,
    checkpoint: Path,
    *,
    validation: Data | None = None,
    device: torch.device | str = "cpu",
    workers: int = 1,
    every: float = EVERY,
    strict: bool = False,
    progress: Progress | None = None,
    report: Callable[[EpochRecord], None] | None = None,
) -> Training:
    """Train `model` in place, resuming from `checkpoint` if there is one; it ends in eval mode, averaged if requested.

    `checkpoint` is replaced after every epoch and every `every` seconds. `validation` images are measured after every
    epoch and decide nothing. `workers` are processes that augment images one by one. Unreadable images are
    replaced by others; with `strict` they are an error.
    """
    device = torch.device(device)
    feed = Feed(data, card, recipe, device, workers, strict)
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _try(model, feed)
    measure = None if validation is None else lambda network: accuracy(network, Loader(validation, card, EVALUATED))
    known = data_fingerprint(data)
    return fit(model, feed, known, checkpoint, device, measure=measure, every=every, progress=progress, report=report)


@together
def fit(
    model: nn.Module,
    feed: Source,
    data: str,
    checkpoint: Path,
    device: torch.device,
    *,
    measure: Callable[[nn.Module], float] | None = None,
    every: float = EVERY,
    progress: Progress | None = None,
    report: Callable[[EpochRecord], None] | None = None,
) -> Training:
    """`train` for any source of batches and losses; `data` is the fingerprint of the training data."""
    recipe = feed.recipe
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{feed.name} has no parameters to train")
    identity: dict[str, Any] = {
        "format": files.FORMAT,
        "recipe": recipe.to_dict(),
        "network": files.network_fingerprint(model),
        "data": data,
    }
    ranks = current()
    facts = {"recipe": identity["recipe"], "network": identity["network"], "images": data}
    ranks.agree("train", lambda: {**facts, "validation": measure is not None})
    ranks.same([*model.parameters(), *model.buffers()])
    training = Training.start(model, recipe)
    known = [there for _, there in ranks.gathered({}, checkpoint.exists())]
    if any(known) and not all(known):
        raise Refused(f"{checkpoint} does not exist on all ranks: choose one on a shared disk")
    state = files.read(checkpoint) if known[0] else None
    if state is not None:
        files.check(state, checkpoint, recipe, identity["network"], identity["data"])
        try:
            training.restore(state)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise FileError(f"{checkpoint} is damaged ({first_line(error)}): {files.WAY_OUT}") from error
        log.info("%s: resuming after %d epochs and %d steps", checkpoint, training.epoch, training.step)

    def save() -> None:
        if ranks.first:
            files.write(checkpoint, {**identity, **training.state()})

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        while training.epoch < recipe.epochs:
            with worker_errors(), synced(model, ranks):
                _epoch(training, feed, every, save, progress or Silent())
            measured = None if measure is None else measure(training.result.eval())
            record = _finish(training, feed, measured)
            save()
            log.info("epoch %d/%d: loss %.4f (%.0f s)", record.epoch, recipe.epochs, record.loss, record.seconds)
            if report is not None:
                report(record)
    if training.average is not None:
        model.load_state_dict(training.average.module.state_dict())
    model.eval()
    return training


def _try(model: nn.Module, feed: Feed) -> None:
    """Find what does not fit before the first step, and report it in one line."""
    model.eval()
    for example in feed.examples():
        shape = "×".join(map(str, example.shape[1:]))
        try:
            with torch.no_grad():
                outputs: Any = model(example)
        except RuntimeError as error:
            raise ConfigError(f"{feed.name} cannot take images of {shape}: {first_line(error)}") from error
        classes = logits(outputs, feed.name).shape[1]
        if int(feed.labels.max()) >= classes:
            raise DataError(
                f"{feed.data.name} has a label {int(feed.labels.max())}, but {feed.name} has {classes} classes"
            )


def _epoch(training: Training, feed: Source, every: float, save: Callable[[], None], progress: Progress) -> None:
    """The steps of one epoch that are still to do."""
    recipe, epoch, total = feed.recipe, training.epoch, feed.recipe.epochs * feed.steps
    progress.phase(f"epoch {epoch + 1}/{recipe.epochs}", feed.steps - training.step, None)
    begun = saved = last = time.perf_counter()
    first, ranks = training.step, current()
    training.model.train()
    for batch in feed.batches(epoch, first):
        torch.manual_seed(
            mixed(recipe.seed, epoch, training.step, ranks.rank)
        )  # for dropout, whatever was drawn before
        lr = recipe.learning_rate(epoch * feed.steps + training.step, total)
        loss = _step(training, feed, batch, lr)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} in epoch {epoch + 1}, step {training.step + 1} of {feed.steps}: lower the "
                f"learning rate or limit the gradient (clip); the last checkpoint is kept"
            )
        training.loss += loss
        training.step += 1
        now = time.perf_counter()
        if training.seconds is not None:
            training.seconds += now - last
        last = now
        rest = (now - begun) / (training.step - first) * (total - epoch * feed.steps - training.step)
        progress.advance(f"loss {loss:.3f}, lr {lr:.4g}, {timedelta(seconds=round(rest))} left")
        if now - saved >= every and training.step < feed.steps:
            save()
            saved = time.perf_counter()


def _step(training: Training, feed: Source, batch: Any, lr: float) -> float:
    """One step of the optimiser; a loss that is not finite is returned and changes nothing."""
    recipe, ranks = feed.recipe, current()
    # the mean over the whole batch, of which each rank has a share
    loss = feed.loss(training.model, batch) * (len(ranks.share(recipe.batch)) / recipe.batch)
    total = loss.detach().double()
    ranks.add_up([total])
    value = total.item()
    if not math.isfinite(value):
        return value
    training.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if ranks.count > 1:
        ranks.add_up([p.grad for p in training.model.parameters() if p.grad is not None])
    if recipe.clip > 0:
        nn.utils.clip_grad_norm_(training.model.parameters(), recipe.clip)
    for group in training.optimiser.param_groups:
        group["lr"] = lr
    training.optimiser.step()
    if training.average is not None:
        training.average.update_parameters(training.model)
    return value


def _finish(training: Training, feed: Source, measured: float | None) -> EpochRecord:
    earlier = sum(record.seconds for record in training.history)
    steps = feed.recipe.epochs * feed.steps
    record = EpochRecord(
        epoch=training.epoch + 1,
        loss=training.loss / feed.steps,
        lr=feed.recipe.learning_rate((training.epoch + 1) * feed.steps - 1, steps),
        score=measured,
        seconds=(training.seconds or 0.0) - earlier,
    )
    training.history.append(record)
    training.epoch, training.step, training.loss = training.epoch + 1, 0, 0.0
    return record
