"""Kinds of scores. Scores lie between 0 and 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STORED = "accuracy"  # the key of every score in files: accuracy was the first measure


@dataclass(frozen=True)
class Measure:
    """`key` names it in files, `name` in words; a `share` of images has a known standard error."""

    key: str
    name: str
    share: bool


ACCURACY = Measure("accuracy", "accuracy", share=True)
MAP = Measure("map", "mAP", share=False)
MEASURES = {measure.key: measure for measure in (ACCURACY, MAP)}


def from_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of a file, with the score under its own key."""
    return {"score" if name == STORED else name: value for name, value in facts.items()}


def to_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as files store them."""
    return {STORED if name == "score" else name: value for name, value in facts.items()}
