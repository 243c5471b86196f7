"""What a report finds to say."""

from spikecal.pipeline import CALIBRATORS
from spikecal.report.findings import PLURAL


def test_every_calibrator_can_be_spoken_of() -> None:
    """AUTO may keep any of them."""
    assert {calibrator.label for calibrator in CALIBRATORS.values()} <= set(PLURAL)
