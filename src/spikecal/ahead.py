"""Reading beside computing: the next item is read while one is worked on."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items in their order, each read by another thread while the one before it is worked on.

    No more than one waits. Decoders of images, and loaders with processes of their own, leave Python's lock alone.
    """
    source = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="spikecal-reader") as pool:
        coming = pool.submit(next, source, _END)
        while not isinstance(item := coming.result(), _End):
            coming = pool.submit(next, source, _END)
            yield item


class _End:
    """What comes after the last item."""


_END = _End()
