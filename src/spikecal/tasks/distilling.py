"""Distil calibration images from networks and write them to a file."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spikecal.distillation.distill import IMAGES, Distilled, distill
from spikecal.distillation.inversion import Losses
from spikecal.errors import ConfigError
from spikecal.files import check_folder, check_output
from spikecal.progress import Progress, has_bars
from spikecal.tasks.outcome import Line, Outcome, Table, asides, duration, percent, size
from spikecal.tasks.task import Say
from spikecal.zoo.detectors import is_detector
from spikecal.zoo.models import load_model

DRAWN = (1, 3)  # channels of images that can be drawn


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A network and others to distil from, with their checkpoints; the file to write, and how."""

    model: str
    weights: Path | None
    others: Sequence[tuple[str, Path | None]]
    output: Path
    sheet: Path | None  # the contact sheet; None: beside the output
    images: int | None
    size: tuple[int, int] | None
    iterations: int | None
    batch: int | None
    seed: int
    workdir: Path | None
    device: str | None = None

    def picture(self) -> Path:
        """Where the images and the contact sheet go; raises if they cannot be written."""
        if self.output.suffix != ".npz":
            raise ConfigError(f"images are written as .npz: name the file {self.output.with_suffix('.npz').name}")
        picture = self.sheet or self.output.with_suffix(".png")
        if picture.suffix.lower() != ".png":
            raise ConfigError(f"{picture.name}: the contact sheet must end in .png")
        check_output(self.output)
        check_output(picture, [self.output])
        if self.workdir is not None:
            check_folder(self.workdir)
        return picture


def distill_images(asked: Distillation, progress: Progress | None, say: Say) -> Outcome:
    """Make images from the networks, and write them to a file and to a contact sheet."""
    picture, output = asked.picture(), asked.output
    models = [(asked.model, asked.weights), *asked.others]
    for name, _ in models:
        if is_detector(name):
            raise ConfigError(f"{name} is a detector: images can be distilled from classifiers only")
    loaded = [load_model(name, weights, device=asked.device) for name, weights in models]
    started = time.perf_counter()
    made = distill(
        [network for network, _ in loaded],
        asked.images or IMAGES,
        asked.size,
        card=[card for _, card in loaded],
        iterations=asked.iterations,
        batch=asked.batch,
        seed=asked.seed,
        workdir=asked.workdir,
        progress=progress,
        report=None if has_bars(progress) else lambda *batch: say(batch_line(*batch)),
    )
    seconds = time.perf_counter() - started
    made.save(output)
    drawn = made.sheet(picture) if made.images.shape[1] in DRAWN else 0
    others = [name if weights is None else f"{name}={weights}" for name, weights in asked.others]
    facts = {"file": str(output), "bytes": output.stat().st_size, "models": [asked.model, *others]}
    facts |= {"sheet": str(picture) if drawn else None, "drawn": drawn, "seconds": seconds}
    count, shape = len(made.images), "×".join(map(str, made.images.shape[1:]))
    shown = f"; {picture} shows {drawn:,} of them" if drawn else "; no contact sheet, which needs 1 or 3 channels"
    written = f"{output}: {count:,} images {shape}, {size(output.stat().st_size)}, {duration(seconds)}{shown}"
    return Outcome({**facts, **made.facts()}, [batches_table(made), *asides(made.notes), Line(written)])


def batches_table(made: Distilled) -> Table:
    """How close the statistics of each batch came to those the networks remember."""
    rows = [
        (
            str(index + 1),
            *("" if value is None else f"{value:.4f}" for value in (one.start, one.statistics, one.labels)),
            "" if one.right is None else percent(one.right),
        )
        for index, one in enumerate(made.losses)
    ]
    columns = ("batch", ">statistics of noise", ">of images", ">cross-entropy", ">of the class %")
    caption = "Statistics: divergence of the input of BN from the statistics it remembers, mean over layers."
    return Table("Distilled", columns, rows, caption)


def batch_line(done: int, of: int, losses: Losses) -> str:
    """One line per batch, where there is no bar."""
    parts = [] if losses.statistics is None else [f"statistics {losses.start:.4f} → {losses.statistics:.4f}"]
    parts += [] if losses.right is None else [f"{percent(losses.right)} % of the target class"]
    return f"batch {done}/{of}: {', '.join(parts) or 'noise'}"
