"""What holds for all tests."""

import math
import sys

import pytest


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands print does not depend on how busy the machine is: no lines of progress every few seconds."""
    monkeypatch.setattr("spikecal.progress.EVERY", math.inf)


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of functions leave their folder on the path: no test finds modules by another's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
