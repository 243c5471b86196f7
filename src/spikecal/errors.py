"""Every error a user can cause. Each message names the thing at fault and the way out."""

import unicodedata
from collections.abc import Mapping

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode categories of invisible characters that terminals act on


class SpikecalError(Exception):
    """Base of all errors of this library."""


class ConversionError(SpikecalError):
    """The network cannot be converted.

    `layer` is where, `found` what is there, `hint` what to do; `others` are more errors of the same kind.
    """

    def __init__(self, layer: str, found: str, hint: str, others: tuple["ConversionError", ...] = ()) -> None:
        self.layer, self.found, self.hint, self.others = layer, found, hint, others
        super().__init__("\n".join(f"{e.layer}: {e.found}; {e.hint}" for e in (self, *others)))


class FileError(SpikecalError):
    """A file is not a spiking network, or is incomplete."""


class DataError(SpikecalError):
    """Images or labels cannot be used."""


class ConfigError(SpikecalError):
    """A setting has an invalid value."""


class CalibrationError(SpikecalError):
    """A threshold, calibrator or neuron returned something unusable; `stage` is where, `part` which of them."""

    def __init__(self, stage: str, part: str, found: str) -> None:
        self.stage, self.part, self.found = stage, part, found
        super().__init__(f"{stage}: {part} {found}")


class TrainingError(SpikecalError):
    """Training cannot go on."""


class RankError(SpikecalError):
    """Another process of the task is lost, stuck or has failed. All ranks raise it; one, with `tell`, reports it."""

    def __init__(self, message: str, tell: bool = True) -> None:
        super().__init__(message)
        self.tell = tell


def refuse_unreadable(data: str, unreadable: Mapping[str, str]) -> None:
    """Raise for unreadable images, as `--strict` demands; `unreadable` gives the reason for each file."""
    if unreadable:
        file, reason = next(iter(unreadable.items()))
        more = f", and {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
        raise DataError(
            f"{data}: {len(unreadable):,} unreadable: {file} ({reason}){more}: leave out --strict to go on without them"
        )


def shown(value: object) -> str:
    """A value from a file, short enough for a line."""
    return str(value) if type(value) in (bool, int, float) and len(str(value)) <= 60 else repr(str(value)[:60])


def visible(text: str) -> str:
    """Text that is safe in a terminal: control characters, reversed text and bytes that are not UTF-8 are escaped."""
    return "".join(_escaped(c) if c not in "\n\t" and unicodedata.category(c) in HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # how Python represents such a byte in the name of a file
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
