"""`spikecal.check`: a dry run that shows what a network would become, what is refused and why, memory and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spikecal.analysis.estimate import Estimate, estimate
from spikecal.arguments import DEFAULT_T, check_model, checked_keep, home_of, steps_of
from spikecal.devices import Device, device_of, placed, whatever_the_default
from spikecal.errors import ConversionError, DataError
from spikecal.graph.joints import LinearValues
from spikecal.kernels import described
from spikecal.memory import in_words
from spikecal.pipeline import AUTO, Plan, resolve_plan
from spikecal.progress import duration
from spikecal.tables import Table
from spikecal.tensors import as_tensor

NAMED = 4  # linear values listed by name
COLUMNS = ("stage", "kind", "operations", ">shape", ">parameters")


@dataclass(frozen=True, repr=False)
class Check:
    """Whether a network converts.

    Attributes:
        name: The model's name.
        T: Time steps that the estimate is for.
        refused: One error for every place that is refused.
        estimate: Time, memory and energy, if the network converts.
    """

    name: str
    T: int
    refused: tuple[ConversionError, ...] = ()
    estimate: Estimate | None = None

    @property
    def converts(self) -> bool:
        """Whether nothing is refused."""
        return self.estimate is not None

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The stages it would have: name, kind, operations, shape and parameters of each."""
        return [] if self.estimate is None else self.estimate.stages

    def table(self) -> Table:
        """Its stages, or the refused places."""
        if self.estimate is None:
            rows = [(error.layer, error.found, error.hint) for error in self.refused]
            return Table(f"{self.name}: refused", ("layer", "found", "what to do"), rows)
        cost = f"at T = {self.T} about {duration(self.estimate.seconds)} and {in_words(self.estimate.bytes)} of memory"
        energy = self.estimate.energy.sentence()
        said = [
            *linear_lines(self.estimate.linear),
            f"{len(self.stages)} stages; {cost}; loops by {described()}",
            energy,
        ]
        return Table(f"{self.name}: converts", COLUMNS, stage_rows(self.stages), "\n".join(said))

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@whatever_the_default
def check(
    model: nn.Module,
    x: Any,
    T: int = DEFAULT_T,
    pipeline: Plan | str = AUTO,
    *,
    keep: Sequence[str] = (),
    device: Device = None,
) -> Check:
    """A dry run on some images `x` `[N, ...]`: nothing is converted, and refusals are returned rather than raised."""
    check_model(model)
    model = placed(model, device_of(device))
    (steps,) = steps_of(T)
    images = as_tensor(x)
    if not isinstance(images, Tensor) or not images.is_floating_point() or images.ndim < 2 or not len(images):
        raise DataError("check needs some images as a tensor of floats [N, ...], normalised as in training")
    name, home = type(model).__name__, home_of(model)
    try:
        found = estimate(model, images.to(*home), checked_keep(keep), steps, resolve_plan(pipeline))
    except ConversionError as error:
        return Check(name, steps, refused=(error, *error.others))
    return Check(name, steps, estimate=found)


def linear_lines(found: LinearValues) -> list[str]:
    """What to know about linear values that weighted layers read, and the ways to handle them."""
    count = len(found.names)
    if count == 0:
        return []
    shown = ", ".join(found.names[:NAMED]) + (f" and {count - NAMED} more" if count > NAMED else "")
    values = "1 linear value" if count == 1 else f"{count} linear values"
    layers = "1 layer" if count == 1 else f"{count} layers"
    share = f"{100 * found.share:.0f} % of the network's multiply-adds at every step"
    merge = "merges none" if found.merged == 0 else f"merges {found.merged} into one with the layer before"
    left = f", and {found.left} then still {'reads' if found.left == 1 else 'read'} currents" if found.left else ""
    read = f"{values} that weighted layers read, {found.at_joints} of them at joints: {shown}"
    options = (
        f"joints signed, the default: spikes of {layers} of signed neurons",
        f"joints analog: currents, which cost {share}",
        f"joints merge: {merge}{left}",
    )
    return [read, "; ".join(options)]


def stage_rows(stages: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One line per stage, for tables with `COLUMNS`."""
    return [
        (f["stage"], f["kind"], ", ".join(f["operations"]), "×".join(map(str, f["shape"])), f"{f['parameters']:,}")
        for f in stages
    ]
