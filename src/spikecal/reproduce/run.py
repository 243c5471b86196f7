"""Make a table cell by cell. Each finished cell is a file; a killed run resumes with the next."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spikecal.analysis.measures import from_stored, to_stored
from spikecal.errors import ConfigError
from spikecal.files import write_whole
from spikecal.progress import Progress, Silent
from spikecal.ranks import Ranks, apart, current, together
from spikecal.reproduce.cells import Cell, long_cell, machine, same_for_every_seed
from spikecal.reproduce.sizes import Sizes
from spikecal.reproduce.sources import Wanted
from spikecal.reproduce.subjects import Subject, Wish
from spikecal.reproduce.tables import Table
from spikecal.zoo.models import ZOO

log = logging.getLogger(__name__)
Report = Callable[[str, float, float], None]  # a finished cell, the seconds it took, and those left in total


class Store:
    """Finished cells in a folder, one JSON file each, named by a hash of what they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cells"

    def create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.folder} cannot be created: {error.strerror}") from error

    def load(self, key: str) -> dict[str, Any] | None:
        """The measurement, or None if it is missing; an invalid file counts as missing."""
        try:
            stored = json.loads((self.folder / f"{key}.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            stored = None
        if not isinstance(stored, dict) or not isinstance(stored.get("found"), dict):
            log.warning("%s is damaged: measuring it again", self.folder / f"{key}.json")
            return None
        return from_stored(stored["found"])

    def save(self, key: str, cell: Cell, configuration: dict[str, Any], found: dict[str, Any], seconds: float) -> None:
        facts = {"cell": str(cell), "found": to_stored(found), "configuration": configuration}
        whole = {**facts, "seconds": seconds, "machine": machine()}
        write_whole(self.folder / f"{key}.json", json.dumps(whole, indent=1) + "\n")

    def work(self, key: str) -> Path:
        """The folder where a long cell keeps its parts until it is finished."""
        folder = self.folder / f"{key}.work"
        folder.mkdir(exist_ok=True)
        return folder

    def tidy(self, key: str) -> None:
        shutil.rmtree(self.folder / f"{key}.work", ignore_errors=True)


@dataclass(frozen=True)
class Plan:
    """A table with its networks and cells."""

    table: Table
    sizes: Sizes
    T: tuple[int, ...]
    subjects: dict[str, Subject]
    cells: list[Cell]

    def seconds(self, cells: Sequence[Cell]) -> float:
        """An estimate from one pass of each network."""
        if self.table.kind == "space":  # counting takes a second, one pass of a large network far longer
            return float(len(cells))
        return sum(cell.passes() * self.subjects[cell.model].seconds_a_pass for cell in cells)

    def preparing(self, cells: Sequence[Cell]) -> float:
        """An estimate of the time to make the images of these cells, if there are none yet."""
        wanted = dict.fromkeys((cell.model, cell.source) for cell in cells if cell.source)
        subjects = [(self.subjects[model], source) for model, source in wanted]
        return sum(s.sources[name].passes * s.seconds_a_pass for s, name in subjects)


def choose_models(table: Table, named: Sequence[str], weights: dict[str, Path]) -> list[str]:
    """The given networks, else those of the table that are available here."""
    if named:
        return list(dict.fromkeys(named))
    wanted = table.default_models()
    if table.kind == "space":
        return [name for name in wanted if name in ZOO]
    chosen = [name for name in wanted if name in weights or table.subject.has(name)]
    # A table about networks without BN is still useful with BN.
    chosen = chosen or [name for name in table.models if table.subject.has(name)]
    if not chosen:
        raise ConfigError(
            f"{table.name} needs trained networks that are not in the package: give --model and --weights, such as "
            f"--model {table.models[0]} --weights FILE"
        )
    return chosen


def make_plan(
    table: Table,
    sizes: Sizes,
    *,
    models: Sequence[str] = (),
    weights: dict[str, Path] | None = None,
    data: str | None = None,
    root: Path | None = None,
    T: Sequence[int] = (),
    loaded: dict[tuple[str, str | None], Subject] | None = None,
    wanted: Wanted | None = None,
    strict: bool = False,
    device: str | None = None,
) -> Plan:
    """Load the networks and images, and list the cells: all of one seed before the next, short ones first.

    `loaded` are networks already loaded, by name and data; new ones are added. `wanted` is for tables about
    where calibration images come from; rows with unavailable images are left out, and the page says so. With
    `strict`, unreadable images are an error.
    """
    data = data or (None if models else table.data)
    weights, loaded = weights or {}, {} if loaded is None else loaded
    chosen = choose_models(table, models, weights)
    if unused := sorted(set(weights) - set(chosen)):
        raise ConfigError(f"there are weights for {unused[0]}, which is not measured here: name it with --model")
    wish = Wish(
        data=data,
        root=root,
        images=data is not None or table.kind != "space",
        whole=sizes.images is None,
        trained=table.measures,
        strict=strict,
        device=device,
    )
    for spec in chosen:
        if (spec, data) not in loaded:
            loaded[spec, data] = table.subject.load(spec, weights.get(spec), wish)
    subjects = {spec: loaded[spec, data] for spec in chosen}
    if table.sources:
        table = _with_sources(table, list(subjects.values()), wanted or Wanted(), root)
    plan = Plan(table, sizes, tuple(sorted(set(T))) or table.default_T, subjects, [])
    for subject in subjects.values():
        plan.cells.extend(_cells(plan, subject))
    plan.cells.sort(key=lambda cell: (cell.seed, cell.T))
    return plan


def _with_sources(table: Table, subjects: Sequence[Subject], wanted: Wanted, root: Path | None) -> Table:
    """Give the networks their sources; returns the table without rows whose source is missing."""
    for subject in subjects:
        subject.sources, subject.absent = subject.find_sources(wanted, root)
    there = set.intersection(*({"", *subject.sources} for subject in subjects))
    return replace(table, rows=tuple(row for row in table.rows if row.source in there))


def _cells(plan: Plan, subject: Subject) -> list[Cell]:
    table, sizes = plan.table, plan.sizes
    if table.kind == "space":
        return [Cell(kind="space", model=subject.spec)]
    available, count = map(len, subject.images)
    cells = []
    for T in plan.T:
        long = sizes.is_long(table, T)
        asked, seeds = (sizes.long_images, sizes.long_seeds) if long else (sizes.images, sizes.seeds)
        images = count if asked is None else min(asked, count)
        if table.measures:
            cells.append(Cell(kind="ann", model=subject.spec, images=images))
        for row in (row for row in table.rows if sizes.has(row.pipeline, T) and T in row.steps(plan.T)):
            pipeline = sizes.of(row.pipeline, table, T)
            once = table.measures and same_for_every_seed(pipeline, available)
            cells += [
                Cell(
                    kind=table.kind,
                    model=subject.spec,
                    row=row.label,
                    pipeline=pipeline,
                    T=T,
                    seed=seed,
                    images=images if table.measures else 0,
                    source=row.source,
                    way=row.way,
                )
                for seed in range(1 if once else seeds)
            ]
    return list(dict.fromkeys(cells))


def pending(plan: Plan, folder: Path) -> list[Cell]:
    """The cells missing in `folder`."""
    store = Store(folder)
    return [cell for cell in plan.cells if _finished(store, cell, plan.subjects[cell.model]) is None]


def _finished(store: Store, cell: Cell, subject: Subject) -> dict[str, Any] | None:
    """The measurement; if unreadable images are an error, only if none were left out."""
    found = store.load(cell.key(subject))
    if found is not None and subject.strict:
        if found.get("unreadable") or (cell.images and found["images"] < cell.images):
            return None
    return found


@together
def run(
    plan: Plan,
    folder: Path,
    progress: Progress | None = None,
    report: Report | None = None,
    memory: int | None = None,
) -> dict[Cell, dict[str, Any]]:
    """Measure what is missing in `folder`; returns the figures of all cells. `report` is called for each new one.

    `memory` is the bytes that a conversion may use; figures do not depend on it.
    """
    ranks, store = current(), Store(folder)
    store.create()
    keys = {cell: cell.key(plan.subjects[cell.model]) for cell in plan.cells}
    known = {keys[cell]: _finished(store, cell, plan.subjects[cell.model]) for cell in plan.cells}
    wanted = {keys[cell]: cell for cell in reversed(plan.cells) if known[keys[cell]] is None}
    left = [wanted[key] for key in ranks.decided([key for key in dict.fromkeys(keys.values()) if key in wanted])]
    where = ranks.decided(_places(plan, left, ranks))
    watched = _Watched(progress or Silent(), plan, left)
    if where is None:
        made = {keys[cell]: _measured(cell, plan, folder, watched, report, memory, ranks) for cell in left}
    else:
        for cell in left:  # all ranks make the images that cells share
            _make_source(cell, plan, folder, watched)
        with apart() as alone:
            mine = [cell for cell, rank in zip(left, where, strict=True) if rank == ranks.rank]
            watched = _Watched(progress or Silent(), plan, mine)
            made = {keys[cell]: _measured(cell, plan, folder, watched, report, memory, alone) for cell in mine}
    for _, there in ranks.gathered({}, made):
        known |= there
    return {cell: dict(known[keys[cell]] or {}) for cell in plan.cells}


def _places(plan: Plan, cells: Sequence[Cell], ranks: Ranks) -> list[int] | None:
    """Which rank measures each cell alone; None if all ranks measure one cell after the other."""
    if plan.table.kind == "time" and ranks.count > 1:
        return [0] * len(cells)  # other ranks would slow down what is timed
    return ranks.spread([plan.seconds([cell]) for cell in cells])


def _make_source(cell: Cell, plan: Plan, folder: Path, watched: "_Watched") -> None:
    """Make the calibration images of a cell, if they come from elsewhere and are missing."""
    if cell.source:
        watched.begin(cell)
        plan.subjects[cell.model].make_source(cell.source, folder, watched)


def _measured(
    cell: Cell, plan: Plan, folder: Path, watched: "_Watched", report: Report | None, memory: int | None, ranks: Ranks
) -> dict[str, Any]:
    """Measure and save one cell, unless another process has done so meanwhile."""
    store, subject = Store(folder), plan.subjects[cell.model]
    key = cell.key(subject)
    stored = ranks.decided(_finished(store, cell, subject))
    if stored is not None:
        return stored
    _make_source(cell, plan, folder, watched)
    watched.begin(cell)
    started = time.perf_counter()  # not before: the images serve all cells
    work = store.work(key) if ranks.decided(long_cell(cell, subject)) else None
    stored = subject.measure(cell, work, watched, memory)
    seconds = time.perf_counter() - started
    if ranks.first:
        store.save(key, cell, cell.configuration(subject), stored, seconds)
        store.tidy(key)
    log.info("%s: %s (%.0f s)", cell, stored, seconds)
    watched.end(cell, seconds)
    if report is not None:
        report(watched.cell, seconds, watched.left())
    return stored


class _Watched:
    """Progress over cells: the phases inside a cell, prefixed by the cells done and the time left."""

    def __init__(self, progress: Progress, plan: Plan, todo: Sequence[Cell]) -> None:
        self.progress, self.total, self.done = progress, len(todo), 0
        self.expected = {cell: plan.seconds([cell]) for cell in todo}
        self.took = self.planned = 0.0
        self.cell = ""

    def begin(self, cell: Cell) -> None:
        self.cell = f"cell {self.done + 1}/{self.total}: {cell}"

    def end(self, cell: Cell, seconds: float) -> None:
        self.done += 1
        self.took += seconds
        self.planned += self.expected.pop(cell)

    def left(self) -> float:
        """Remaining seconds, by the estimate and its error so far."""
        return sum(self.expected.values()) * (self.took / self.planned if self.planned > 0 else 1)

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.progress.phase(f"{self.cell}, {name}; total left", total, self.left())

    def advance(self, note: str = "") -> None:
        self.progress.advance(note)
