"""Detectors with a spiking body, torchvision's and your own; datasets with boxes; mean average precision."""

from spikecal.detection.boxes import BoxData
from spikecal.detection.precision import Precision
from spikecal.detection.sources import load_boxes
from spikecal.detection.spiking import Conversion, Sample, convert, evaluate, load, samples
from spikecal.zoo.detectors import load_detector

__all__ = [
    "BoxData", "Conversion", "Precision", "Sample", "convert", "evaluate", "load", "load_boxes",
    "load_detector", "samples",
]  # fmt: skip
