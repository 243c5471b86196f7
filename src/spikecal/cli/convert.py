"""`spikecal convert`: a network in, a file with the spiking network out."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, duration, percent, show_json, show_table, size
from spikecal.errors import ConfigError
from spikecal.memory import parse_bytes

if TYPE_CHECKING:
    from spikecal.calibration.sweep import StageRecord


def convert(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write: net.snn.")],
    weights: options.Weights = None,
    data: options.DataName = None,
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
    json: options.Json = False,
) -> None:
    """Convert a network, calibrate it, and write it to a file."""
    settings = options.configured(pipeline, config, images, iterations, rounding, threshold, per)
    budget = None if memory is None else parse_bytes(memory)
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {output.absolute().parent} to write {output.name} to")
    import spikecal
    from spikecal.data.images import readable
    from spikecal.data.prepare import Prepared
    from spikecal.zoo.models import load_model

    network, card = load_model(model, weights)
    chosen, unreadable = readable(options.chosen_data(data, card, "train", data_root), settings.images, seed)
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
    result.save(output)
    if json:
        facts = {"file": str(output), "bytes": output.stat().st_size, "model": model, "T": sorted(set(steps or [32]))}
        records = [dataclasses.asdict(record) for record in result.records]
        facts |= {"unreadable": options.unreadable_facts(unreadable)}
        show_json({**facts, "pipeline": settings.to_dict(), "seed": seed, "seconds": seconds, "records": records})
        return
    longest = max(steps or [32])
    show_records([record for record in result.records if record.T == longest], longest)
    options.tell_unreadable(unreadable)
    typer.echo(f"{output}: {size(output.stat().st_size)}, {duration(seconds)}")


def show_records(records: list["StageRecord"], T: int) -> None:
    rows = []
    for record in records:
        errors = " → ".join(f"{value:.4f} {label}" for label, value in record.errors)
        shares = [percent(share) if share is not None else "" for share in (record.rate, record.saturated, record.dead)]
        rows.append((record.stage, record.kind, errors, *shares, f"{record.seconds:.1f}"))
    columns = ("stage", "kind", "relative error", ">rate %", ">saturated %", ">dead %", ">s")
    show_table(f"Stages at T = {T}", columns, rows)
