"""Several processes at one task, on torch's own distributed engine: what ranks share, sum up, agree on and watch.

Without a process group there is one rank, which does everything itself at no cost. All ranks make the same calls in the
same order; each works on its share, and what they add up comes out the same to the bit however many there are.
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
