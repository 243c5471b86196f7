"""One thread, for tests that ask for it by importing this fixture."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread: tiny tensors would mostly wait for a second one, and killed runs are compared byte by byte."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
