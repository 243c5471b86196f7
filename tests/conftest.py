"""What holds for all tests."""

import math

import pytest


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands print does not depend on how busy the machine is: no lines of progress every few seconds."""
    monkeypatch.setattr("spikecal.progress.EVERY", math.inf)
