"""Every error a user can cause. Each message names the thing at fault and the way out."""

import unicodedata
from collections.abc import Mapping

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories of what is not seen but acted on


class SpikecalError(Exception):
    """Base of all errors of this library."""


class ConversionError(SpikecalError):
    """The network cannot be converted.

    `layer` is where, `found` what is there, `hint` what to do; `others` are further offenders of the same kind.
    """

    def __init__(self, layer: str, found: str, hint: str, others: tuple["ConversionError", ...] = ()) -> None:
        self.layer, self.found, self.hint, self.others = layer, found, hint, others
        super().__init__("\n".join(f"{e.layer}: {e.found}; {e.hint}" for e in (self, *others)))


class FileError(SpikecalError):
    """A file is not a spiking network, or not a whole one."""


class DataError(SpikecalError):
    """Images or labels cannot be used."""


class ConfigError(SpikecalError):
    """A setting has a value it cannot have."""


class CalibrationError(SpikecalError):
    """A threshold, calibrator or neuron gave what cannot be used; `stage` is where, `part` what it came from."""

    def __init__(self, stage: str, part: str, found: str) -> None:
        self.stage, self.part, self.found = stage, part, found
        super().__init__(f"{stage}: {part} {found}")


class TrainingError(SpikecalError):
    """Training cannot go on."""


class RankError(SpikecalError):
    """Another process of the same task is lost, stuck or has failed. All ranks raise it; one of them is to `tell`."""

    def __init__(self, message: str, tell: bool = True) -> None:
        super().__init__(message)
        self.tell = tell


def refuse_unreadable(data: str, unreadable: Mapping[str, str]) -> None:
    """What `--strict` does about images that cannot be read; `unreadable` says of each file why."""
    if unreadable:
        file, reason = next(iter(unreadable.items()))
        more = f", and {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
        raise DataError(f"{data}: {len(unreadable):,} unreadable: {file} ({reason}){more}; without --strict it goes on")


def shown(value: object) -> str:
    """What a file says, short enough for a line."""
    return str(value) if type(value) in (bool, int, float) and len(str(value)) <= 60 else repr(str(value)[:60])


def visible(text: str) -> str:
    """A text whose names no terminal acts on: control characters, turned text and bytes that are not UTF-8 escaped."""
    return "".join(_escaped(c) if c not in "\n\t" and unicodedata.category(c) in HIDDEN else c for c in text)


def _escaped(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # what Python makes of such a byte in the name of a file
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def first_line(error: BaseException) -> str:
    """Of a foreign error's message; its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
