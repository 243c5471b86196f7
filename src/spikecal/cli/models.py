"""`spikecal models`: list the named networks."""

from spikecal.cli.console import show
from spikecal.cli.options import Json


def models(json: Json = False) -> None:
    """List the named networks."""
    from spikecal.tasks.catalogue import list_models

    show(list_models(), json)
