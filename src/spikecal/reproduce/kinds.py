"""The kinds of tables that score networks on test images, as files name them, and what they are measured on."""

from spikecal.reproduce.classifiers import Classifier
from spikecal.reproduce.detectors import Detector
from spikecal.reproduce.subjects import Subject

SUBJECTS: dict[str, type[Subject]] = {"accuracy": Classifier, "frontier": Classifier, "detection": Detector}


def subject_of(kind: str) -> type[Subject]:
    """What a table of this kind is measured on: what a conversion costs, on classifiers."""
    return SUBJECTS.get(kind, Classifier)
