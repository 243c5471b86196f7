"""How far long work has got: what whoever wants to show it implements."""

from typing import Protocol


class Progress(Protocol):
    """`phase` starts a part of the work: its name, its number of steps, and the seconds it may take, where known."""

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None: ...


class Silent:
    """Progress that nobody watches."""

    def phase(self, name: str, total: int, seconds: float | None) -> None: ...

    def advance(self, note: str = "") -> None: ...
