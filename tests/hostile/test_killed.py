"""Commands that are killed at random moments end with the same bytes when they are rerun.

`SPIKECAL_KILLS=100` is the number of kills.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hostile import killing
from killed import report_of


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    kills = os.environ.get("SPIKECAL_KILLS", killing.KILLS)
    return report_of(Path(killing.__file__), tmp_path_factory.mktemp("killed"), kills)


@pytest.mark.parametrize("verb", killing.VERBS)
def test_killed_and_run_again_a_command_gives_the_same_bytes(found: Any, verb: str) -> None:
    deaths = found[verb]["deaths"]
    assert deaths and any(death["killed"] for death in deaths)
    for death in deaths:
        assert death["finished"] and death["files"] == found[verb]["uninterrupted"]
        assert death["left"] == []
