"""Options that several verbs share."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from spikecal.errors import ConfigError

Value = TypeVar("Value")
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name from `spikecal models`, torchvision:NAME, timm:NAME, pytorchcv:NAME, file.py:function, "
        "module:function or net.onnx.",
    ),
]
Weights = Annotated[
    str | None, typer.Option(metavar="[MODEL=]FILE", help="Checkpoint: safetensors or a torch state dict.")
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="A name from `spikecal datasets`, folder:PATH, npz:PATH, imagenet:PATH or file.py:function; for "
        "detectors voc:PATH, coco:PATH or yolo:PATH.",
    ),
]
Calibration = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="A name from `spikecal datasets`, folder:PATH, npz:PATH, imagenet:PATH, file.py:function, or distilled: "
        "images made from the network itself; for detectors voc:PATH, coco:PATH or yolo:PATH.",
    ),
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="MODEL[=FILE]", help="Another network, with its checkpoint; may be repeated."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the named datasets. (default $SPIKECAL_DATA or ~/.cache/spikecal)"),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where to compute: cpu, cuda, cuda:1 or mps. (default cpu)")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail if an image cannot be read.")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory to use, such as 4G. (default half of what is free)")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="The same seed gives the same bits.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Also write a report, one HTML page, to this file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Task = Annotated[
    Literal["classify", "detect"] | None,
    typer.Option(help="What the network does. (default by its name: see `spikecal models`)"),
]
Neurons = Annotated[
    list[str] | None,
    typer.Option("--neuron", metavar="CLASS", help="Class of the file's own neurons, file.py:Class; may be repeated."),
]
Target = Annotated[
    Literal["loihi2", "speck", "spinnaker2", "generic"] | None, typer.Option(help="Chip whose limits apply.")
]
Rounding = Literal["floor", "bias", "potential", "split"]
Per = Literal["layer", "channel"]
Effort = Literal["low", "normal", "high"]
Joints = Literal["analog", "signed", "merge"]


def shape_of(shape: str | None, size: tuple[int, int] | None) -> tuple[int, ...] | None:
    """The shape of one input, from `--shape 2,64` or `--size H W`, which leaves the channels to the network."""
    if shape is not None and size is not None:
        raise ConfigError("give --shape or --size, not both")
    if size is not None:
        if min(size) < 1:
            raise ConfigError(f"--size must be a height and a width in pixels, not {size[0]} and {size[1]}")
        return (0, *size)
    if shape is None:
        return None
    texts = re.split(r"[,x×]", shape.replace(" ", ""))
    parts = [int(text) if text.isdecimal() and len(text) < 10 else 0 for text in texts]
    if min(parts) < 1 or len(parts) > 4:
        raise ConfigError(f"--shape must be one to four positive sizes, such as 3,32,32, 2,64 or 16, not {shape!r}")
    return tuple(parts)


def renamed(old: str, value: Value | None, new: str, given: Value | None) -> Value | None:
    """The value given by the old or the new name of a flag; the old one still works, with a warning."""
    if value is None:
        return given
    if given is not None:
        raise ConfigError(f"{old} is the old name of {new}: give {new} alone")
    typer.echo(f"warning: {old} is now called {new}", err=True)
    return value


def checkpoint(entry: str | None, model: str | None) -> Path | None:
    """The file of `FILE` or `MODEL=FILE` for a single network; the file's own name may contain `=`."""
    if entry is None:
        return None
    name, equals, file = entry.partition("=")
    if not equals or Path(entry).exists() or name != (model or name):
        return Path(entry)
    if not file:
        raise ConfigError(f"--weights {entry} names no file: write {name}=FILE")
    return Path(file)


def name_and_file(entry: str) -> tuple[str, Path | None]:
    """The two parts of `MODEL` or `MODEL=FILE`."""
    name, equals, file = entry.partition("=")
    if equals and not file:
        raise ConfigError(f"--with {entry} names no file: write {name} or {name}=FILE")
    return name, Path(file) if file else None


def checkpoints(given: Sequence[str], models: Sequence[str]) -> dict[str, Path]:
    """Network -> file, from `MODEL=FILE` or, where one network is named, `FILE`."""
    found = {}
    for entry in given:
        name, equals, file = entry.partition("=")
        if not equals and len(models) == 1:
            name, file = models[0], entry
        elif not equals:
            raise ConfigError(f"say which network {entry} is for: --weights MODEL={entry}")
        elif not file:
            raise ConfigError(f"--weights {entry} names no file: write {name}=FILE")
        found[name] = Path(file)
    return found
