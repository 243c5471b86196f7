"""What training shares, whatever the task: the device, its progress lines, the end of a card."""

from typing import Any

import torch
from torch import Tensor, nn

from spikecal.errors import ConversionError, DataError
from spikecal.graph.lowering.lower import lower
from spikecal.tasks.outcome import duration, in_flags, percent
from spikecal.tasks.task import Say
from spikecal.training.loop import EpochRecord


def epoch_line(record: EpochRecord, epochs: int, measure: str = "", images: str = "held-out") -> str:
    """One line per epoch, with the measurement on validation images, which decide nothing."""
    measured = "" if record.score is None else f", {measure}{percent(record.score)} % of the {images} images"
    done = f"epoch {record.epoch}/{epochs}: loss {record.loss:.4f}, lr {record.lr:.4g}"
    return f"{done}{measured} ({duration(record.seconds)})"


def check_convertible(model: str, network: nn.Module, images: Tensor, say: Say) -> None:
    """Warn at once that a network cannot be converted as it is: its training may take days."""
    try:
        lower(network, (images,))
    except DataError:
        pass  # training itself reports images that do not fit
    except ConversionError as error:
        more = f" (and {len(error.others)} more: `spikecal check {model}`)" if error.others else ""
        say(in_flags(f"warning: {model} cannot be converted: {error.layer}: {error.found}; {error.hint}{more}"))


def circumstances(home: torch.device, seconds: float | None) -> dict[str, Any]:
    """What the bits depend on besides the recipe, and the time it took."""
    return {
        "seconds": None if seconds is None else round(seconds, 1),
        "device": home.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__.partition("+")[0],
    }
