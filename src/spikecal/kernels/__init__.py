"""Fast loops behind one interface: compiled by numba where that is installed. Torch's operations are the reference.

Each function does the work and says so, or returns what means "not here": then the caller does it with torch. Both ways
give the same values to the bit. `SPIKECAL_KERNELS=torch` in the environment asks for torch, `=numba` insists on numba.
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
    except (ImportError, RuntimeError, OSError) as error:  # not there, no folder for compiled code, or no memory
        if wanted:
            said = first_line(error)
            raise ConfigError(f"{VARIABLE} is numba, which cannot be used ({said}): pip install numba") from error
        log.info("numba cannot be used (%s); torch does its work", first_line(error))
        return None
    return machine_code


def described() -> str:
    """What runs the loops, for people."""
    if compiled() is None:
        return "torch"
    from numba import __version__

    return f"numba {__version__}"
