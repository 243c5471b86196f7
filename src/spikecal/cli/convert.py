"""`spikecal convert`: read a network, write a file with the spiking network."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spikecal.cli import options
from spikecal.cli.console import aside, bars, show, silent
from spikecal.cli.several import written
from spikecal.files import check_folder, check_output
from spikecal.memory import parse_bytes

TESTED = 250  # test images for the summary


def convert(
    model: options.Model,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write, such as net.snn.")],
    task: options.Task = None,
    weights: options.Weights = None,
    data: options.Calibration = None,
    data_root: options.DataRoot = None,
    strict: options.Strict = False,
    steps: Annotated[
        list[int] | None,
        typer.Option("-T", min=1, metavar="N", help="Time steps; repeat for several networks. (default 32)"),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS",
            help="Steps to the answer: a number, 2x for twice T, or +10 for ten more than T. Layers "
            "wait where that helps. Without -T, T is also chosen. (default T)",
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="auto, maxact, percentile, baseline, lcp, pc, acp, or a method of others such as rmp. "
            "(default auto; baseline with --calibrator)",
        ),
    ] = None,
    effort: Annotated[
        options.Effort | None,
        typer.Option(help="How much auto tries: about 5, 20 or 300 times as long as lcp takes. (default normal)"),
    ] = None,
    joints: Annotated[
        options.Joints | None,
        typer.Option(
            help="How to pass on linear values that weighted layers read: as currents, as signed spikes, or merged "
            "where one linear map is cheaper than two. (default signed)"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Pipeline as a TOML file.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Submodule at the end of the network to keep analog; may be repeated."),
    ] = None,
    calibration: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Calibration images for every part. (default 128 for bias and potential, 1,024 otherwise)",
        ),
    ] = None,
    images: Annotated[int | None, typer.Option("--images", min=1, hidden=True)] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Iterations of weights calibration per stage. (default 5,000)"),
    ] = None,
    rounding: Annotated[
        options.Rounding | None, typer.Option(help="Where the half step of rounding goes. (default bias)")
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="X",
            help="With --rounding split: the share in the potential, the rest being bias. (default 0.5)",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How to choose thresholds: maxact, percentile, mmse, learned, local balancing or file.py:Class. "
            "(default mmse)",
        ),
    ] = None,
    calibrator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="bias, potential, weights, … or file.py:Class, instead of the pipeline's own; may be repeated.",
        ),
    ] = None,
    neuron: Annotated[
        str | None, typer.Option(metavar="NAME", help="Neuron model, file.py:Class. (default integrate-and-fire)")
    ] = None,
    per: Annotated[
        options.Per | None, typer.Option(help="One threshold per layer or per channel. (default channel)")
    ] = None,
    potentials: Annotated[
        Literal["neuron", "channel"] | None,
        typer.Option(
            help="One initial potential per neuron or, as exports need, per channel. (default neuron; channel for "
            "detectors)"
        ),
    ] = None,
    seed: options.Seed = 0,
    workdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep finished stages here; rerun to resume.")
    ] = None,
    memory: options.Memory = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Images per kernel call.")] = None,
    test: Annotated[
        int, typer.Option(min=0, metavar="N", help="Test images for the summary; 0 for no summary.")
    ] = TESTED,
    records: Annotated[
        bool,
        typer.Option(
            "--records/--no-records",
            help="Simulate some images to record the error of each stage, even if nothing is calibrated.",
        ),
    ] = True,
    report: options.Report = None,
    readout: Annotated[
        Literal["current", "spikes"] | None,
        typer.Option(help="What the body of a detector passes on. (default current)"),
    ] = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Convert a network, calibrate it, and write it to a file."""
    from spikecal.tasks.choose import task_of_model
    from spikecal.tasks.requests import Conversion, pipeline_of

    calibration = options.renamed("--images", images, "--calibration", calibration)
    settings = pipeline_of(
        pipeline, config, images=calibration, iterations=iterations, rounding=rounding, kappa=kappa,
        threshold=threshold, per=per, potentials=potentials, effort=effort, calibrators=calibrator or (), neuron=neuron,
    )  # fmt: skip
    budget = None if memory is None else parse_bytes(memory)
    output, report = written(output), report and written(report)
    check_output(output)
    if report is not None:
        check_output(report, [output])
    if workdir is not None:
        check_folder(workdir)
    asked = Conversion(
        model=model, output=output, weights=options.checkpoint(weights, model), data=data, data_root=data_root,
        steps=sorted(set(steps)) if steps else None, latency=latency, joints=joints, pipeline=settings,
        images=calibration, keep=tuple(keep or ()), readout=readout, seed=seed, workdir=workdir, memory=budget,
        micro_batch=micro_batch, test=test, strict=strict, records=records, report=report,
        device=device,
    )  # fmt: skip
    chosen = task_of_model(model, task)
    with bars(json) as progress:
        outcome = chosen.convert(asked, progress, silent if json else aside)
    show(outcome, json)
