"""One page about the networks of several files, whatever their tasks."""

from collections.abc import Sequence
from pathlib import Path

from spikecal.data.images import Unreadable
from spikecal.progress import Progress
from spikecal.report.source import Source, from_file
from spikecal.tasks.choose import TASKS, task_of_file
from spikecal.tasks.outcome import Line, Outcome, Table, unreadable_facts, unreadable_lines
from spikecal.tasks.pages import carried, write_report
from spikecal.tasks.requests import Reporting
from spikecal.tasks.summary import summary_table
from spikecal.tasks.task import Looked, Say


def report_files(
    files: Sequence[Path],
    output: Path,
    steps: Sequence[int],
    asked: Reporting,
    named: str | None,
    progress: Progress | None,
    say: Say,
) -> Outcome:
    """Measure the networks of the files for `steps`, each by its task, and write the page."""
    seen = _seen(
        [(file, from_file(file, steps, asked.neurons, asked.device)) for file in files], asked, named, progress, say
    )
    notes = [carried(one.source.name, one.why) for one in seen if one.why]
    page = write_report(output, [(one.source, one.measured) for one in seen], notes)
    unreadable: Unreadable = {file: reason for one in seen for file, reason in one.unreadable.items()}
    measured = [(one.source.name, one.measured.summary) for one in seen]
    parts: list[Table | Line] = [summary_table(name, summary) for name, summary in measured if summary is not None]
    parts += [*unreadable_lines(unreadable), *page.lines()]
    return Outcome({**page.facts(), "unreadable": unreadable_facts(unreadable)}, parts)


def _seen(
    sources: Sequence[tuple[Path, Source]],
    asked: Reporting,
    named: str | None,
    progress: Progress | None,
    say: Say,
) -> list[Looked]:
    """What the tasks measure, in the order of the files."""
    tasks = [task_of_file(s.name, s.detector, s.first.origin.card, asked.model, named) for _, s in sources]
    seen: dict[int, Looked] = {}
    for task in TASKS.values():
        own = [i for i, other in enumerate(tasks) if other is task]
        found = task.look([sources[i] for i in own], asked, progress, say) if own else []
        seen |= dict(zip(own, found, strict=True))
    return [seen[i] for i in range(len(sources))]
