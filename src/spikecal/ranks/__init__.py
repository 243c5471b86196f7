"""Several processes at one task, on torch's distributed engine: they share work, add up, agree and watch each other.

Without a process group there is one rank, which does everything itself at no cost. All ranks make the same calls in the
same order; each works on its share, and sums are the same to the bit however many ranks there are.
"""

from spikecal.ranks.exchange import CHUNK
from spikecal.ranks.group import Group, Refused
from spikecal.ranks.one import Ranks, Sum
from spikecal.ranks.process import SCRATCH, apart, current, process_group, together, writes

__all__ = [
    "CHUNK",
    "SCRATCH",
    "Group",
    "Ranks",
    "Refused",
    "Sum",
    "apart",
    "current",
    "process_group",
    "together",
    "writes",
]
