"""Fast loops behind one interface: compiled by numba if it is installed. Torch's operations are the reference.

Each function does the work and reports it, or returns a value that means "not here": then the caller uses torch. Both
give the same values to the bit. `SPIKECAL_KERNELS=torch` in the environment selects torch, `=numba` insists on numba.
"""

import logging
import os
from functools import cache
from types import ModuleType

from spikecal.errors import ConfigError, first_line

VARIABLE, CHOICES = "SPIKECAL_KERNELS", ("torch", "numba")
log = logging.getLogger(__name__)


@cache
def compiled() -> ModuleType | None:
    """The compiled loops, if there are any to use."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", *CHOICES):
        raise ConfigError(f"{VARIABLE} is {wanted!r}: it must be {' or '.join(CHOICES)}")
    if wanted == "torch":
        return None
    try:
        from spikecal.kernels import machine_code
    except (ImportError, RuntimeError, OSError) as error:  # not installed, no folder for compiled code, or no memory
        if wanted:
            said = first_line(error)
            raise ConfigError(f"{VARIABLE} is numba, which cannot be used ({said}): pip install numba") from error
        log.info("numba cannot be used (%s): using torch", first_line(error))
        return None
    return machine_code


def described() -> str:
    """What runs the loops, in words."""
    if compiled() is None:
        return "torch"
    from numba import __version__

    return f"numba {__version__}"
