"""The command `spikecal`: its verbs, and how it reports errors."""

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

import spikecal
from spikecal.cli import (
    check,
    convert,
    datasets,
    demo,
    distill,
    evaluate,
    export,
    figure,
    models,
    report,
    reproduce,
    train,
)
from spikecal.cli import run as running
from spikecal.cli.console import logging_visibly, printing_aside
from spikecal.cli.several import VERBS, end, is_first, launched, several
from spikecal.errors import ConfigError, ConversionError, RankError, SpikecalError, first_line, visible
from spikecal.export.packages import EXTRAS, missing
from spikecal.memory import is_out_of_memory
from spikecal.tasks.outcome import in_flags

BAD_CALL = 2
INTERRUPTED = 130

app = typer.Typer(
    name="spikecal",
    help="Convert trained PyTorch networks into accurate spiking networks that need few time steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(check.check)
app.command()(convert.convert)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(figure.figure)
app.command()(export.export)
app.command()(running.run)
app.command()(distill.distill)
app.command()(train.train)
app.command()(reproduce.reproduce)
app.command()(models.models)
app.add_typer(datasets.app, name="datasets")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"spikecal {spikecal.__version__}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Convert trained PyTorch networks into accurate spiking networks that need few time steps."""
    if launched() and context.invoked_subcommand not in VERBS:
        raise ConfigError(f"{context.invoked_subcommand} runs in one process: start it without torchrun")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; anything a user can cause exits with code 2 and one line on standard error."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        several_ranks = several() if launched() else nullcontext()
        with several_ranks, logging_visibly(), printing_aside() if "--json" in words else nullcontext():
            code = app(arguments, standalone_mode=False, prog_name="spikecal")
    except SpikecalError as error:
        return _fail(_one_line(error), error.tell if isinstance(error, RankError) else is_first())
    except typer.TyperException as error:
        said = error.format_message()
        return _fail(said, is_first()) if said else BAD_CALL  # an empty message: the help was shown instead
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return _fail(missing(error.name), is_first())
    except OSError as error:  # a full disk, a read-only folder
        return _fail(str(error), is_first())
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail(f"not enough memory ({first_line(error)}): use --memory, fewer images or a smaller T")
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def run() -> None:
    code = main()
    if code and launched():
        end(code)
    sys.exit(code)


def _one_line(error: SpikecalError) -> str:
    if isinstance(error, ConversionError) and error.others:
        first = f"{error.layer}: {error.found}; {error.hint}"
        return f"{first} (and {len(error.others)} more: `spikecal check` lists them)"
    return str(error)


def _fail(message: str, said: bool = True) -> int:
    """Print one line on standard error if `said`: of several ranks, only the first prints."""
    if said:
        typer.echo(f"error: {visible(' '.join(in_flags(message).split()))}", err=True)
    return BAD_CALL


if __name__ == "__main__":
    run()
