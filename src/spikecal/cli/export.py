"""`spikecal export`: write a network for another simulator or for hardware."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from spikecal.cli import options
from spikecal.cli.console import bars, show


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `spikecal convert`.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")],
    to: Annotated[
        Literal["nir", "onnx", "spikingjelly"] | None,
        typer.Option(help="Format. (default by the suffix of -o: .nir, .onnx, .py)"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("-T", min=1, metavar="N", help="Which network of the file to export. (default the largest T)"),
    ] = None,
    input_size: Annotated[
        tuple[int, int] | None, typer.Option("--size", metavar="H W", help="Input size. (default the network's own)")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the export in each installed simulator and compare every spike.")
    ] = False,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    images: Annotated[int, typer.Option(min=1, metavar="N", help="Images to verify on.")] = 100,
    seed: options.Seed = 0,
    bits: Annotated[
        int | None, typer.Option(min=4, max=16, metavar="N", help="Export integers, with weights of N bits.")
    ] = None,
    per: Annotated[options.Per | None, typer.Option(help="With --bits: one scale per channel or per layer.")] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Round values so that all sums are exact in float32: the spikes are the same everywhere."
        ),
    ] = False,
    target: options.Target = None,
    json: options.Json = False,
) -> None:
    """Write a network for another simulator, and verify that its spikes are the same there."""
    from spikecal.tasks.exporting import Exporting, export_file

    asked = Exporting(
        file=file, output=output, to=to, steps=steps, size=input_size, verify=verify, data=data, data_root=data_root,
        images=images, seed=seed, bits=bits, per=per, exact=exact, target=target,
    )  # fmt: skip
    with bars(json) as progress:
        outcome = export_file(asked, progress)
    show(outcome, json)
