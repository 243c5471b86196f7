"""`spikecal run`: write the spikes of a network as data."""

from pathlib import Path
from typing import Annotated

import typer

from spikecal.cli import options
from spikecal.cli.console import show


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `spikecal convert`.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write: .npz or .csv.")],
    steps: Annotated[
        int | None,
        typer.Option("-T", min=1, metavar="N", help="Which network of the file to run. (default the largest T)"),
    ] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    images: Annotated[int, typer.Option(min=1, metavar="N", help="Test images, drawn by the seed.")] = 1,
    seed: options.Seed = 0,
    neuron: options.Neurons = None,
    device: options.Device = None,
    json: options.Json = False,
) -> None:
    """Run a network on images and write its input currents and every spike, for hardware test benches."""
    from spikecal.tasks.running import Running, run_file

    asked = Running(
        file=file, output=output, steps=steps, data=data, data_root=data_root, images=images, seed=seed,
        neurons=neuron or (), device=device,
    )  # fmt: skip
    show(run_file(asked), json)
