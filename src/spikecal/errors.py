"""Every error a user can cause. Each message names the thing at fault and the way out."""

from collections.abc import Mapping


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


def refuse_unreadable(data: str, unreadable: Mapping[str, str]) -> None:
    """What `--strict` does about images that cannot be read; `unreadable` says of each file why."""
    if unreadable:
        file, reason = next(iter(unreadable.items()))
        more = f", and {len(unreadable) - 1:,} more" if len(unreadable) > 1 else ""
        raise DataError(f"{data}: {len(unreadable):,} unreadable: {file} ({reason}){more}; without --strict it goes on")


def shown(value: object) -> str:
    """What a file says, short enough for a line."""
    return repr(str(value)[:60])


def first_line(error: BaseException) -> str:
    """Of a foreign error's message; its kind where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
