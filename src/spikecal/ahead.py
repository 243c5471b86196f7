"""Read ahead: the next item is read while the current one is processed."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items in order, each read by another thread while the one before it is processed.

    At most one item waits. Image decoders, and loaders with their own processes, release Python's lock.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="spikecal-reader") as pool:
        coming = pool.submit(next, source, _END)
        while not isinstance(item := coming.result(), _End):
            coming = pool.submit(next, source, _END)
            yield item


class _End:
    """Marks the end of the items."""


_END = _End()
