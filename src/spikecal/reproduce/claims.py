"""Kinds of claims about a table: each has a size, both in the paper's figures and in ours."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from spikecal.analysis.measures import from_stored
from spikecal.reproduce.kinds import subject_of
from spikecal.reproduce.paired import paired_error

SEEDS = 5  # needed to compare deviations


@dataclass(frozen=True)
class Column:
    """One figure: a row of a network after T steps."""

    mean: float
    std: float | None  # over seeds
    seeds: int
    images: int | None  # of which the mean is a share; None if it is not a share, or unknown
    ann: float | None
    answers: tuple[str, ...] = ()  # packed, one per seed, if they are known


@dataclass(frozen=True)
class Network:
    """The figures of one network, by row and T."""

    model: str
    bn: bool
    rows: Mapping[str, Mapping[int, Column]]

    def columns(self, *rows: str) -> dict[int, list[Column]]:
        """T -> the figures of these rows, if all of them have one."""
        found = [self.rows.get(row, {}) for row in rows]
        return {T: [row[T] for row in found] for T in found[0] if all(T in row for row in found)}


@dataclass(frozen=True)
class Size:
    """The size in the unit of its claim, and its uncertainty."""

    models: tuple[str, ...]
    T: int
    value: float
    noise: float
    par: bool = False  # too near to the ANN, both of them, for a difference to matter


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that a size is at least `least`, or at most `most`; `at` is after how many steps."""

    text: str
    least: float = 0.0
    most: float | None = None
    at: Literal["all", "fewest", "most"] | int = "all"
    bn: bool | None = None  # about networks with it, or without
    ours: bool = False  # not the paper's claim
    unit: ClassVar[str] = "points"

    @property
    def rows(self) -> set[str]:
        """Whether it is about this network."""
        raise NotImplementedError

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        """The size for every network and T that has one."""
        raise NotImplementedError

    def sizes(self, networks: Sequence[Network]) -> list[Size]:
        """The sizes that the claim refers to."""
        found = list(self.measured([n for n in networks if self.bn is None or n.bn == self.bn]))
        steps = sorted({size.T for size in found})
        named = {"all": steps, "fewest": steps[:1], "most": steps[-1:]}
        wanted = [self.at] if isinstance(self.at, int) else named[self.at]
        return [size for size in found if size.T in wanted]

    def verdict(self, size: Size) -> str:
        """`seen`, `not seen`, or `level` if within the uncertainty."""
        ahead = size.value - self.least if self.most is None else self.most - size.value
        return "level" if size.par or abs(ahead) <= size.noise else "seen" if ahead > 0 else "not seen"


@dataclass(frozen=True, kw_only=True)
class Gain(Claim):
    """Points by which one row is ahead of another. Rows that are both within `par` points of the ANN are level."""

    row: str
    over: str
    par: float | None = None

    @property
    def rows(self) -> set[str]:
        return {self.row, self.over}

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for network in networks:
            for T, (row, over) in network.columns(self.row, self.over).items():
                yield Size((network.model,), T, row.mean - over.mean, noise(row, over), _at_par(self.par, row, over))


@dataclass(frozen=True, kw_only=True)
class Sooner(Gain):
    """Points by which one row is ahead of another with twice the steps."""

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for network in networks:
            later = network.rows.get(self.over, {})
            for T, (row,) in network.columns(self.row).items():
                if 2 * T in later:
                    yield Size((network.model,), T, row.mean - later[2 * T].mean, noise(row, later[2 * T]))


@dataclass(frozen=True, kw_only=True)
class Closed(Gain):
    """Share of one row's gap to the ANN that another closes; without a gap there is no size."""

    unit: ClassVar[str] = "%"

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for network in networks:
            for T, (row, over) in network.columns(self.row, self.over).items():
                gap = (over.ann or 0.0) - over.mean
                if gap > noise(row, over):
                    yield Size((network.model,), T, 100 * (row.mean - over.mean) / gap, 100 * noise(row, over) / gap)


@dataclass(frozen=True, kw_only=True)
class Steadier(Gain):
    """Points by which the deviation of a row is below that of another, over enough seeds.

    A deviation of n values has a relative uncertainty of 1/sqrt(2(n - 1)).
    """

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for network in networks:
            for T, (row, over) in network.columns(self.row, self.over).items():
                if row.std is None or over.std is None or min(row.seeds, over.seeds) < SEEDS:
                    continue
                known = math.hypot(*(c.std / math.sqrt(2 * (c.seeds - 1)) for c in (row, over) if c.std))
                yield Size((network.model,), T, over.std - row.std, known)


@dataclass(frozen=True, kw_only=True)
class Kept(Claim):
    """Share of the ANN's figure that a row keeps."""

    row: str
    unit: ClassVar[str] = "%"

    @property
    def rows(self) -> set[str]:
        return {self.row}

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for network in networks:
            for T, (row,) in network.columns(self.row).items():
                if row.ann:  # an ANN with no correct answers has nothing to keep
                    known = max(_spread(row), _ann_error(row))
                    yield Size((network.model,), T, 100 * row.mean / row.ann, 100 * known / row.ann)


@dataclass(frozen=True, kw_only=True)
class WithBN(Claim):
    """Points by which a row of the network with BN is ahead of one without."""

    row: str
    without: str

    @property
    def rows(self) -> set[str]:
        return {self.row, self.without}

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for with_bn, plain in _pairs(networks):
            theirs = plain.rows.get(self.without, {})
            for T, (row,) in with_bn.columns(self.row).items():
                if T in theirs:
                    value = row.mean - theirs[T].mean
                    yield Size((with_bn.model, plain.model), T, value, noise(row, theirs[T]))


@dataclass(frozen=True, kw_only=True)
class LostByBN(Claim):
    """Points by which the network with BN loses more of its ANN's accuracy than the one without."""

    row: str

    @property
    def rows(self) -> set[str]:
        return {self.row}

    def measured(self, networks: Sequence[Network]) -> Iterator[Size]:
        for with_bn, plain in _pairs(networks):
            theirs = plain.rows.get(self.row, {})
            for T, (row,) in with_bn.columns(self.row).items():
                if T in theirs:
                    lost = [(column.ann or 0.0) - column.mean for column in (row, theirs[T])]
                    known = max(_spread(row, theirs[T]), math.hypot(_ann_error(row), _ann_error(theirs[T])))
                    yield Size((with_bn.model, plain.model), T, lost[0] - lost[1], known)


def _pairs(networks: Sequence[Network]) -> list[tuple[Network, Network]]:
    """The same network with and without BN: matched by name, or else in order."""
    plain = {n.model.removesuffix("-nobn"): n for n in networks if not n.bn}
    with_bn = [n for n in networks if n.bn]
    named = [(n, plain[n.model]) for n in with_bn if n.model in plain]
    return named or list(zip(with_bn, plain.values(), strict=False))


def _at_par(points: float | None, *columns: Column) -> bool:
    return points is not None and all(c.ann is not None and c.ann - c.mean <= points for c in columns)


def noise(one: Column, two: Column) -> float:
    """The larger of the deviation over seeds and the standard error of a difference of shares of images, in points.

    The error is paired over images where the answers to each are known.
    """
    paired = paired_error(one.answers, two.answers)
    apart = math.hypot(*(_error(column.mean, column) for column in (one, two)))
    return max(_spread(one, two), apart if paired is None else paired)


def _spread(*columns: Column) -> float:
    return max(column.std or 0.0 for column in columns)


def _error(percent: float, column: Column) -> float:
    """The standard error of a share of the column's images, in points."""
    return 100 * math.sqrt(percent / 100 * (1 - percent / 100) / column.images) if column.images else 0.0


def _ann_error(column: Column) -> float:
    """The standard error of a row's gap to its ANN."""
    return math.hypot(_error(column.mean, column), _error(column.ann or 0.0, column))


def networks_of(summary: Mapping[str, Any]) -> list[Network]:
    """The figures of a measured table."""
    share = subject_of(summary["kind"]).score.share
    found = []
    for network in summary["networks"]:
        anns = {ann["images"]: ann["score"] for ann in map(from_stored, network.get("ann", ()))}
        rows = {
            row["method"]: {
                int(T): Column(
                    mean=column["mean"],
                    std=column["std"],
                    seeds=len(column["values"]),
                    images=column["images"] if share else None,
                    ann=anns.get(column["images"]),
                    answers=tuple(column.get("answers", ())),
                )
                for T, column in row["columns"].items()
            }
            for row in network["rows"]
        }
        found.append(Network(network["model"], network["bn"], rows))
    return found
