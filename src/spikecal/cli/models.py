"""`spikecal models`: the networks that have a name."""

from spikecal.cli.console import show
from spikecal.cli.options import Json


def models(json: Json = False) -> None:
    """List the networks that have a name."""
    from spikecal.tasks.catalogue import list_models

    show(list_models(), json)
