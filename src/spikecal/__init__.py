"""spikecal: convert a trained PyTorch network into an accurate spiking network that needs few time steps."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from spikecal import detection
    from spikecal.analysis.checking import Check, check
    from spikecal.analysis.evaluate import Evaluation
    from spikecal.analysis.exits import ExitRule, Exits
    from spikecal.analysis.inspection import inspect
    from spikecal.calibration.calibrators import Bias, Calibrator, Potential, Weights
    from spikecal.calibration.finetune import FineTune
    from spikecal.calibration.histogram import Histogram
    from spikecal.calibration.readout import ReadOut
    from spikecal.calibration.regression import ClosedFormWeights
    from spikecal.calibration.rescale import RefineThreshold
    from spikecal.calibration.temporal import TemporalBias
    from spikecal.calibration.threshold import MMSE, Learned, MaxAct, Percentile, Threshold
    from spikecal.calibration.update import Update
    from spikecal.calibration.view import StageView
    from spikecal.conversion import convert
    from spikecal.data.card import Card
    from spikecal.data.loading import load_images
    from spikecal.distillation.distill import Distilled, distill
    from spikecal.distillation.inversion import Inversion
    from spikecal.errors import (
        CalibrationError,
        ConfigError,
        ConversionError,
        DataError,
        FileError,
        RankError,
        SpikecalError,
        TrainingError,
    )
    from spikecal.evaluation import evaluate, exit_rule
    from spikecal.graph.stages import Stage
    from spikecal.neurons import Cells, IntegrateAndFire, Neuron
    from spikecal.pipeline import ACP, AUTO, BASELINE, LCP, MAXACT, PC, PERCENTILE, Pipeline
    from spikecal.result import Result
    from spikecal.snn.file import load
    from spikecal.snn.network import SpikingNetwork
    from spikecal.snn.recording import Run
    from spikecal.zoo.models import load_model

# The public names and their modules. They are imported on first use: importing torch takes seconds, `--help` must not.
_HOMES = {
    "spikecal.analysis.checking": ("Check", "check"),
    "spikecal.analysis.evaluate": ("Evaluation",),
    "spikecal.analysis.inspection": ("inspect",),
    "spikecal.calibration.calibrators": ("Bias", "Calibrator", "Potential", "Weights"),
    "spikecal.calibration.finetune": ("FineTune",),
    "spikecal.calibration.regression": ("ClosedFormWeights",),
    "spikecal.calibration.readout": ("ReadOut",),
    "spikecal.calibration.rescale": ("RefineThreshold",),
    "spikecal.calibration.temporal": ("TemporalBias",),
    "spikecal.calibration.histogram": ("Histogram",),
    "spikecal.calibration.threshold": ("MMSE", "Learned", "MaxAct", "Percentile", "Threshold"),
    "spikecal.calibration.update": ("Update",),
    "spikecal.calibration.view": ("StageView",),
    "spikecal.conversion": ("convert",),
    "spikecal.data.card": ("Card",),
    "spikecal.data.loading": ("load_images",),
    "spikecal.distillation.distill": ("Distilled", "distill"),
    "spikecal.distillation.inversion": ("Inversion",),
    "spikecal.errors": (
        "CalibrationError",
        "ConfigError",
        "ConversionError",
        "DataError",
        "FileError",
        "RankError",
        "SpikecalError",
        "TrainingError",
    ),
    "spikecal.analysis.exits": ("ExitRule", "Exits"),
    "spikecal.evaluation": ("evaluate", "exit_rule"),
    "spikecal.graph.stages": ("Stage",),
    "spikecal.neurons": ("Cells", "IntegrateAndFire", "Neuron"),
    "spikecal.pipeline": ("ACP", "AUTO", "BASELINE", "LCP", "MAXACT", "PC", "PERCENTILE", "Pipeline"),
    "spikecal.result": ("Result",),
    "spikecal.snn.file": ("load",),
    "spikecal.snn.network": ("SpikingNetwork",),
    "spikecal.snn.recording": ("Run",),
    "spikecal.zoo.models": ("load_model",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ACP", "AUTO", "BASELINE", "Bias", "CalibrationError", "Calibrator", "Card", "Cells", "Check",
    "ClosedFormWeights", "ConfigError", "ConversionError", "DataError", "Distilled", "Evaluation", "ExitRule",
    "Exits", "FileError", "FineTune", "Histogram", "IntegrateAndFire", "Inversion", "LCP", "Learned", "MAXACT",
    "MMSE", "MaxAct", "Neuron", "PC", "PERCENTILE", "Percentile", "Pipeline", "Potential", "RankError",
    "ReadOut", "RefineThreshold", "Result", "Run", "SpikecalError", "SpikingNetwork", "Stage", "StageView",
    "TemporalBias", "Threshold", "TrainingError", "Update", "Weights", "check", "convert", "detection",
    "distill", "evaluate", "exit_rule", "inspect", "load", "load_images", "load_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("detection", "ranks"):  # modules with public names of their own
        return import_module(f"spikecal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'spikecal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
