"""`spikecal convert`: a network in, a file with the spiking network out."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, show_table, size
from spikecal.cli.distill import distilled_for
from spikecal.cli.reporting import report_result
from spikecal.cli.summary import measure, show_summary
from spikecal.errors import ConfigError, DataError
from spikecal.memory import parse_bytes

if TYPE_CHECKING:
    from spikecal.calibration.sweep import StageRecord
    from spikecal.data.images import Data

TESTED = 250  # images of the summary


def convert(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: net.snn.")],
    task: options.Task = None,
    weights: options.Weights = None,
    data: options.Calibration = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    steps: Annotated[
        list[int] | None,
        typer.Option(
            "-T", min=1, metavar="N", help="Time steps; give it several times for several networks. (default 32)"
        ),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(metavar="NAME", help="maxact, percentile, baseline, lcp, pc or acp. (default lcp)")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A pipeline as TOML.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Submodule that stays analog, at the network's end.")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Calibration images for every part. (default 128 for bias and potential, 1,024 else)",
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of weights calibration, a stage. (default 5,000)")
    ] = None,
    rounding: Annotated[options.Rounding | None, typer.Option(help="How rounding enters. (default bias)")] = None,
    threshold: Annotated[
        options.Threshold | None, typer.Option(help="How thresholds are found. (default mmse)")
    ] = None,
    per: Annotated[
        options.Per | None, typer.Option(help="One threshold a layer or a channel. (default channel)")
    ] = None,
    seed: options.Seed = 0,
    workdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished stages here: killed, the same command goes on.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory to use: 4G. (default half of what is free)")
    ] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Images a kernel call.")] = None,
    test: Annotated[
        int, typer.Option(min=0, metavar="N", help="Images of the summary, of the test split; 0 for none.")
    ] = TESTED,
    report: options.Report = None,
    readout: Annotated[
        Literal["current", "spikes"] | None,
        typer.Option(help="What a detector's body passes on. (default current)"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Convert a network, calibrate it, and write it to a file."""
    settings = options.configured(pipeline, config, images, iterations, rounding, threshold, per)
    budget = None if memory is None else parse_bytes(memory)
    options.check_output(output)
    if report is not None:
        options.check_output(report, [output])
    if options.is_detection(model, task):
        from spikecal.cli import detect

        if keep:
            raise ConfigError("--keep is not for detectors: all but the body stays analog")
        if data == "distilled":
            raise ConfigError("images are not distilled from detectors: give --data voc:PATH or --data coco:PATH")
        detect.convert_detector(
            model, output,
            weights=weights, data=data, steps=sorted(set(steps or [32])), pipeline=settings, count=images,
            readout=readout, seed=seed, workdir=workdir, memory=budget, micro_batch=micro_batch, test=test,
            strict=strict, report=report, json=json,
        )  # fmt: skip
        return
    if readout is not None:
        raise ConfigError(f"--readout is for detectors, and {model} is none")
    import spikecal
    from spikecal.conversion import seconds_alone
    from spikecal.data.images import readable
    from spikecal.data.prepare import Prepared
    from spikecal.data.sources import DISTILLED, subset
    from spikecal.zoo.models import load_model

    network, card = load_model(model, weights)
    distilled = None
    if data == DISTILLED:
        distilled = distilled_for(network, card, settings.images, seed, workdir, json)
        source, data = distilled.data(), None  # it is still measured on real images, if there are some
    else:
        source = options.chosen_data(data, card, "train", data_root)
    chosen, unreadable = readable(source, settings.images, seed)
    if strict:
        options.refuse_unreadable(chosen.name, unreadable)
    prepared = Prepared(chosen, card)
    started = time.perf_counter()
    with bars(json) as progress:
        result = spikecal.convert(
            network,
            prepared,
            T=steps or [32],
            pipeline=settings,
            seed=seed,
            keep=tuple(keep or ()),
            workdir=workdir,
            memory=budget,
            micro_batch=micro_batch,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    result.card = card.to_dict()
    if distilled is not None:
        result.more["calibration"] = "distilled"
    result.save(output)  # what comes now only looks at it
    summary, tested, why = None, None, "" if test > 0 else "--test 0"
    if test > 0:
        try:
            if distilled is not None and card.data is None:
                raise DataError(f"{card.name} comes with no images to test on")
            held_out = options.chosen_data(data, card, "test", data_root)
            tested = subset(held_out, test, seed)
            with bars(json) as progress:
                summary, more = measure(
                    [result.at(T) for T in sorted(result.networks)],
                    network,
                    tested,
                    card,
                    "calibration" if same_images(held_out, source) else "test",
                    strict=strict,
                    seconds=seconds_alone(result.seconds),
                    progress=progress,
                )
            unreadable = {**unreadable, **more}
            result.measured = summary.measured()
            result.save(output)
        except DataError as error:  # no images to test on, or no classes to be right about
            why = str(error)
    written = None
    if report is not None:
        with bars(json) as progress:
            written = report_result(report, output.name, result, network, tested, card, summary, why, progress)
    if json:
        facts = {"file": str(output), "bytes": output.stat().st_size, "model": model, "T": sorted(set(steps or [32]))}
        records = [dataclasses.asdict(record) for record in result.records]
        facts |= {"unreadable": options.unreadable_facts(unreadable), "pipeline": settings.to_dict(), "seed": seed}
        facts |= {"seconds": seconds, "phases": result.seconds, "summary": summary and summary.to_dict()}
        facts |= {} if distilled is None else {"distilled": distilled.facts()}
        facts |= {} if written is None else {"report": written.facts()}
        show_json({**facts, "records": records})
        return
    longest = max(steps or [32])
    show_records([record for record in result.records if record.T == longest], longest)
    if summary is not None:
        show_summary(str(output), summary)
    options.tell_unreadable(unreadable)
    for note in () if distilled is None else distilled.notes:
        typer.echo(f"distilled: {note}", err=True)
    if why and test > 0:
        typer.echo(f"no summary: {why}", err=True)
    if written is not None:
        written.show()
    typer.echo(f"{output}: {size(output.stat().st_size)}, {duration(seconds)}")


def same_images(a: "Data", b: "Data") -> bool:
    """Whether two splits are one: some sources have no others."""
    from torch import Tensor, equal

    if isinstance(a.images, Tensor) and isinstance(b.images, Tensor):
        return equal(a.images, b.images)
    return bool(a.images == b.images)  # lists of files


def show_records(records: list["StageRecord"], T: int) -> None:
    rows = []
    for record in records:
        errors = " → ".join(f"{value:.4f} {label}" for label, value in record.errors)
        shares = [percent(share) if share is not None else "" for share in (record.rate, record.saturated, record.dead)]
        rows.append((record.stage, record.kind, errors, *shares, f"{record.seconds:.1f}"))
    columns = ("stage", "kind", "relative error", ">rate %", ">saturated %", ">dead %", ">s")
    show_table(f"Stages at T = {T}", columns, rows)
