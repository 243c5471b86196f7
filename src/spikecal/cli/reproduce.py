"""`spikecal reproduce`: measure one of the paper's tables."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show, silent
from spikecal.errors import ConfigError
from spikecal.memory import parse_bytes

NOT_SHOWN = ("output", "data_root", "memory", "json")  # in the command quoted on the page
FILES = ("weights", "others")


def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the table; without it, the tables are listed.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Network to measure; may be repeated. (default the table's, if trained)"),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FILE", help="Checkpoint of a network; FILE alone if there is only one network."),
    ] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    steps: Annotated[
        list[int] | None,
        typer.Option("-T", min=1, metavar="N", help="Time steps; may be repeated. (default the table's)"),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Test images, always the same. (default 1,000; fakedata 2,000)"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Calibration samples to average over. (default 3; frontier 1)"),
    ] = None,
    calibration: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Images per calibrator, at most; not for samples and time. (default its own number)",
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Iterations of weights calibration per layer. (default 500)")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images per iteration of weights calibration. (default 16)")
    ] = None,
    weights_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images of weights calibration. (default 256)")
    ] = None,
    weights_to: Annotated[
        int | None,
        typer.Option(min=1, metavar="T", help="Measure weights calibration only up to this T. (default all)"),
    ] = None,
    long_from: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="T", help="First T with the sizes for long runs. (default the columns T≥512 and T≥2048)"
        ),
    ] = None,
    long_images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Test images for long runs. (default 100)")
    ] = None,
    long_calibration: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images per calibrator for long runs. (default 32)")
    ] = None,
    waits: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For frontier: steps of latency beyond T. (default 10)"),
    ] = None,
    effort: Annotated[
        options.Effort | None,
        typer.Option(metavar="EFFORT", help="For frontier: how much AUTO tries. (default normal)"),
    ] = None,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="For cifar: also measure the methods that the paper only quotes.")
    ] = False,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="LABEL", help="Row to measure; may be repeated. (default all)")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="MODEL[=FILE]", help="For fakedata: another network to distil from; may be repeated."
        ),
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="For fakedata: the other real images. (default what is available)"),
    ] = None,
    distilled: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For fakedata: images to distil. (default 1,024)")
    ] = None,
    distill_iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="For fakedata: iterations of distillation. (default 40)")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="As in the paper: all T, all test images, 5 seeds, 5,000 iterations.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the tables and their finished cells.")
    ] = Path("spikecal-tables"),
    memory: options.Memory = None,
    strict: options.Strict = False,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Measure one of the paper's tables, or one of ours; rerun to resume."""
    from spikecal.reproduce.reproduce import Reproduction, list_tables, reproduce_table
    from spikecal.reproduce.sources import Wanted

    sizes = {
        "images": images, "seeds": seeds, "calibration": calibration, "iterations": iterations, "batch": batch,
        "weights": weights_images,
        "weights_to": weights_to, "long_from": long_from, "long_images": long_images,
        "long_calibration": long_calibration,
    }  # fmt: skip
    flags = {"--with": others, "--other": other, "--distilled": distilled, "--distill-iterations": distill_iterations}
    for_sources = [flag for flag, value in flags.items() if value]
    if name is None:
        if model or weights or data or waits or effort or rivals or rows or for_sources:
            raise ConfigError("name a table: without NAME, `spikecal reproduce` lists the tables and their networks")
        show(list_tables(full, sizes, data_root, steps or []), json)
        return
    numbers = {"images": distilled, "iterations": distill_iterations}
    wanted = Wanted(
        partners=tuple(map(options.name_and_file, others or [])),
        other=other,
        **{key: value for key, value in numbers.items() if value is not None},
    )
    asked = Reproduction(
        table=name, models=model or [], weights=options.checkpoints(weights or [], model or []), data=data,
        data_root=data_root, steps=steps or [], full=full, sizes=sizes, waits=waits, effort=effort, rivals=rivals,
        wanted=wanted, for_sources=for_sources, rows=rows or [], strict=strict, output=output,
        memory=None if memory is None else parse_bytes(memory), command=_command(context), device=device,
    )  # fmt: skip
    with bars(json) as progress:
        outcome = reproduce_table(asked, progress, silent if json else aside)
    show(outcome, json)


def _command(context: typer.Context) -> str:
    """The command as typed, for the page, without paths of this machine."""
    words = ["spikecal", "reproduce"]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in NOT_SHOWN:
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append(value)
        elif value is True:
            words.append(parameter.opts[0])
        else:
            for one in value if isinstance(value, list) else [value]:
                words += [parameter.opts[0], _without_folder(str(one)) if name in FILES else str(one)]
    return shlex.join(words)


def _without_folder(entry: str) -> str:
    """`MODEL=FILE` or `FILE`, without the file's folder."""
    model, equals, file = entry.partition("=")
    return f"{model}={Path(file).name}" if equals else Path(entry).name
