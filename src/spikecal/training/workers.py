"""Report errors of the processes that read and augment images in one line."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spikecal.errors import SpikecalError, TrainingError, first_line

SIGNALLED = 5.0  # seconds within which the signal of a death that broke a connection arrives


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise errors of a DataLoader's workers, and their deaths, as if their work had been done here.

    torch reports a death by a signal that raises wherever this process happens to be, so everything done while there
    are workers belongs inside, not only the wait for a batch.
    """
    try:
        try:
            yield
        except (EOFError, ConnectionError):
            # a connection to a dying worker broke before the signal came: wait for it, so that it raises here
            time.sleep(SIGNALLED)
            raise
    except SpikecalError as error:
        # from a worker it comes with a traceback as text, whose last line is "class: message"
        lines = str(error).strip().splitlines()
        if len(lines) < 2:
            raise
        raise type(error)(lines[-1].partition(": ")[2]) from error
    except RuntimeError as error:
        if "DataLoader worker (pid" not in str(error):
            raise
        multiprocessing.active_children()  # reaps the dead: otherwise the end of any process would raise it again
        # killed from outside, or out of (shared) memory
        raise TrainingError(f"{first_line(error).rstrip('.')}: use fewer workers; the checkpoint is kept") from error
