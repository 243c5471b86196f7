"""`spikecal datasets`: the sets that have a name, where they are, and fetching them."""

import sys
from typing import Annotated

import typer

from spikecal.cli.console import show_json, show_table
from spikecal.cli.options import DataRoot, Json
from spikecal.errors import DataError

app = typer.Typer(help="List the sets of images that have a name, or fetch one.", invoke_without_command=True)


@app.callback()
def datasets(context: typer.Context, data_root: DataRoot = None, json: Json = False) -> None:
    """List the sets of images that have a name, or fetch one."""
    if context.invoked_subcommand is not None:
        context.obj = data_root
        return
    from spikecal.data.sources import KNOWN
    from spikecal.data.sources import data_root as default_root

    root = data_root or default_root()
    found = {
        name: {
            "about": known.about,
            "present": known.present(root),
            "where": "the package" if known.fetch is None else str(root),
        }
        for name, known in KNOWN.items()
    }
    if json:
        show_json(found)
        return
    rows = [(name, "yes" if f["present"] else "no", str(f["where"]), str(f["about"])) for name, f in found.items()]
    show_table(
        "",
        ("name", "present", "where", "about"),
        rows,
        "`spikecal datasets get NAME` fetches. Also folder:PATH (class folders), npz:PATH and file.py:function.",
    )


@app.command()
def get(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A set's name.")],
    data_root: DataRoot = None,
) -> None:
    """Fetch a set; it appears whole and verified, or not at all."""
    from spikecal.data.sources import KNOWN
    from spikecal.data.sources import data_root as default_root

    root = data_root or context.obj or default_root()
    if name not in KNOWN:
        raise DataError(f"there is no set {name!r}; there are {', '.join(KNOWN)}")
    known = KNOWN[name]
    if known.present(root) or known.fetch is None:
        typer.echo(f"{name} is there already, in {'the package' if known.fetch is None else root}")
        return
    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(f"fetching {name}"):
            known.fetch(root)
    else:
        known.fetch(root)
    typer.echo(f"{name} is in {root}")
