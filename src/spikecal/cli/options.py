"""Options that several verbs take, and what they mean."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spikecal.errors import ConfigError

if TYPE_CHECKING:
    from spikecal.pipeline import Pipeline

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `spikecal models`, torchvision:NAME, timm:NAME, pytorchcv:NAME, file.py:function or "
        "module:function.",
    ),
]
Weights = Annotated[Path | None, typer.Option(metavar="FILE", help="Checkpoint: safetensors or a torch state dict.")]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="A name from `spikecal datasets`, folder:PATH, npz:PATH, imagenet:PATH or file.py:function; of detectors "
        "voc:PATH or coco:PATH.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="A name from `spikecal datasets`, folder:PATH, npz:PATH, imagenet:PATH, file.py:function, or distilled: "
        "images made from the network itself; of detectors voc:PATH or coco:PATH.",
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="MODEL[=FILE]", help="Another network, with its checkpoint; may be repeated."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the known sets are. (default $SPIKECAL_DATA or ~/.cache/spikecal)"),
]
Strict = Annotated[bool, typer.Option("--strict", help="Images that cannot be read are an error.")]
Memory = Annotated[str | None, typer.Option(metavar="SIZE", help="Memory to use: 4G. (default half of what is free)")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="The same seed gives the same bits.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write a report: one HTML page, report.html.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output and nothing else.")]
Task = Annotated[
    Literal["classify", "detect"] | None,
    typer.Option(help="What the network does. (default what its name says: `spikecal models`)"),
]
Rounding = Literal["floor", "bias", "potential"]
Threshold = Literal["maxact", "percentile", "mmse"]
Per = Literal["layer", "channel"]


def check_output(file: Path, taken: Sequence[Path] = ()) -> None:
    """Before anything long: there must be a place for what comes out of it, and nothing `taken` may be there."""
    if file.resolve() in [other.resolve() for path in taken for other in (path, Path(f"{path}.json"))]:
        raise ConfigError(f"{file} is written or read by the same command: give another name")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder: give the name of a file to write")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.absolute().parent} to write {file.name} to")


def configured(
    pipeline: str | None,
    config: Path | None,
    images: int | None,
    iterations: int | None,
    rounding: Rounding | None,
    threshold: Threshold | None,
    per: Per | None,
) -> "Pipeline":
    """The pipeline of `--pipeline` or `--config`, with what the flags change."""
    from spikecal.calibration.calibrators import Weights
    from spikecal.pipeline import THRESHOLDS, Pipeline, resolve

    if pipeline is not None and config is not None:
        raise ConfigError("give --pipeline or --config, not both: a file can name a preset")
    result = Pipeline.from_toml(config) if config is not None else resolve(pipeline or "lcp")
    if rounding is not None:
        result = replace(result, rounding=rounding)
    if threshold is not None and type(result.threshold) is not THRESHOLDS[threshold]:
        old = result.threshold
        result = replace(result, threshold=THRESHOLDS[threshold](per=old.per, images=old.images))
    if per is not None:
        result = replace(result, threshold=replace(result.threshold, per=per))
    if images is not None:
        result = result.with_images(images)
    if iterations is not None:
        if not result.learns:
            raise ConfigError("--iterations is for weights calibration, not in this pipeline: use --pipeline acp")
        result = result.changed(Weights, iterations=iterations)
    return result
