"""What a network expects of its images, so that users need not specify it."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from spikecal.errors import ConfigError
from spikecal.settings import check_types

Interpolation = Literal["bilinear", "bicubic"]
MOST_PIXELS = 2**26  # of an image before cropping: 8,192 per side
MOST_CHANNELS = 4096


@dataclass(frozen=True, kw_only=True)
class Card:
    """Input size and normalisation of one network.

    `size` is (height, width), None if any size will do; `crop` is the share of the shorter side that the central
    crop keeps, `interpolation` how it is resized. `mean` and `std` have one entry per channel; None leaves pixels as
    they are. `dims` are the dimensions of one input: 1 for vectors, 2 for signals [C, L], 3 for images [C, H, W], 4 for
    volumes; None if neither the card nor the network's convolutions tell. `weights` names an embedded file, and
    `trained` says whether the network is useful without one. `data` is the dataset for calibration and tests unless
    another is named.
    """

    name: str
    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: float = 1.0
    interpolation: Interpolation = "bilinear"
    dims: int | None = None
    classes: tuple[str, ...] = ()
    data: str | None = None
    weights: str | None = None
    trained: bool = False

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ConfigError(f"{self.name}: mean and std must have one entry per channel each")
        if any(not math.isfinite(m) for m in self.mean or ()) or any(not 0 < s < math.inf for s in self.std or ()):
            raise ConfigError(f"{self.name}: mean must be finite and std positive")
        if not 0 < self.crop <= 1:
            raise ConfigError(f"{self.name}: crop must be in (0, 1], not {self.crop}")
        if self.interpolation not in get_args(Interpolation):
            known = " or ".join(get_args(Interpolation))
            raise ConfigError(f"{self.name}: interpolation must be {known}, not {self.interpolation!r}")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ConfigError(f"{self.name}: size must be a height and a width, not {self.size}")
        if self.size is not None and math.prod(self.size) > MOST_PIXELS * self.crop**2:
            raise ConfigError(f"{self.name}: images of {self.size[0]}×{self.size[1]} and a crop of {self.crop} are too "
                              f"large: at most {MOST_PIXELS:,} pixels are allowed")  # fmt: skip
        if (self.channels or 0) > MOST_CHANNELS:
            raise ConfigError(f"{self.name}: images may have at most {MOST_CHANNELS:,} channels, not {self.channels:,}")
        if self.dims not in (None, 1, 2, 3, 4) or (self.size is not None and self.dims not in (None, 3)):
            raise ConfigError(f"{self.name}: dims must be 1 to 4, and 3 if there is a size, not {self.dims}")

    @property
    def channels(self) -> int | None:
        """How many channels images must have; None if the card leaves it open and images are used as they are."""
        return None if self.mean is None else len(self.mean)

    def to_dict(self) -> dict[str, Any]:
        """The part of the card that a converted network needs, as plain JSON values."""
        return {k: v for k, v in asdict(self).items() if k not in ("weights", "trained")}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Card":
        """The inverse of `to_dict`, with lists for tuples."""
        check_types(cls, fields, "a model card's")
        if "name" not in fields:
            raise ConfigError("a model card needs a name")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**values)
