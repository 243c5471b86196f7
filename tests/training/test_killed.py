"""A killed training resumes where it was, and ends with the same bits as an uninterrupted one."""

from pathlib import Path
from typing import Any

import pytest
from killed import report_of

KILLING = Path(__file__).with_name("killing.py")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `killing.py` reports: deaths at random moments, and in the midst of writing a checkpoint."""
    return report_of(KILLING, tmp_path_factory.mktemp("killed"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("recipe", ["quick", "averaged"])
def test_killed_at_random_moments_it_ends_with_the_same_bits(killed: dict[str, Any], recipe: str) -> None:
    (expected,) = set(killed[recipe]["uninterrupted"])
    deaths = killed[recipe]["moments"]
    for death in deaths:
        assert death["finished"] and death["result"] == expected
        assert death["left"] == ["c.pt", "result"]
    assert len({tuple(death["at"]) for death in deaths}) >= 3  # spread over the run
    assert any(death["at"][1] > 0 for death in deaths)  # and some inside an epoch


@pytest.mark.parametrize("recipe", ["quick", "averaged"])
def test_killed_inside_the_writing_of_a_checkpoint_it_ends_with_the_same_bits(
    killed: dict[str, Any], recipe: str
) -> None:
    death = killed[recipe]["save"]
    assert death["half"] and death["at"] == [1, 2]  # six saves an epoch: the ninth was not to be
    assert death["finished"] and death["result"] == killed[recipe]["uninterrupted"][0]
    assert death["left"] == ["c.pt", "result"]
