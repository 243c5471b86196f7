"""The kinds of tables that score networks on test images, as named in files, and their subjects."""

from spikecal.reproduce.classifiers import Classifier
from spikecal.reproduce.detectors import Detector
from spikecal.reproduce.subjects import Subject

SUBJECTS: dict[str, type[Subject]] = {"accuracy": Classifier, "frontier": Classifier, "detection": Detector}


def subject_of(kind: str) -> type[Subject]:
    """The subject of a table of this kind; tables of costs use classifiers."""
    return SUBJECTS.get(kind, Classifier)
