"""Neurons of your own in files: a file names their class and settings, and whoever loads it provides the class.

A layer is stored with the name of its neuron. Nothing that a file names is imported.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spikecal.errors import ConfigError
from spikecal.graph.ops import Spike
from spikecal.neurons import NEURONS, Neuron, check_neuron
from spikecal.parts import Absent, make_part, plain, stand_in
from spikecal.snn.network import SpikingNetwork
from spikecal.usercode import load_class

Given = Neuron | type[Neuron] | str  # an object, its class, or `file.py:Class`


def stored_neurons(networks: Iterable[SpikingNetwork]) -> dict[str, dict[str, Any]]:
    """A file's record of its own neurons: name -> class and settings."""
    ops = [stage.end.op for network in networks for stage in network.stages]
    own = {op.neuron.name: op.neuron for op in ops if isinstance(op, Spike) and op.neuron.name not in NEURONS}
    return {name: plain(neuron, {}) for name, neuron in own.items()}


def absent_neurons(stored: Mapping[str, Any]) -> dict[str, Neuron]:
    """Stand-ins for the neurons that a file names: with them it can be inspected, but not run."""
    found = {name: stand_in(dict(entry), Neuron, "neuron") for name, entry in stored.items()}
    for name, neuron in found.items():
        check_neuron(neuron)
        if neuron.name != name:
            raise ConfigError(f"the neurons {name[:60]!r} have a different name elsewhere")
    return found


def given_neurons(stored: Mapping[str, Any], given: Sequence[Given]) -> dict[str, Neuron]:
    """The neurons of a file, with the user's classes and the file's settings."""
    found = {}
    for one in [given] if isinstance(given, str | Neuron | type) else given:
        kind = load_class(one, Neuron) if isinstance(one, str) else one
        if kind.name not in stored:
            there = f"it has {', '.join(stored)}" if stored else "all of its neurons are spikecal's"
            raise ConfigError(f"the file has no neurons called {kind.name!r}: {there}")
        neuron = make_part(kind, stored[kind.name], "neuron") if isinstance(kind, type) else kind
        if settings(plain(neuron, {})) != settings(stored[kind.name]):
            raise ConfigError(f"the neurons {kind.name!r} were made with different settings: give only their class")
        found[kind.name] = neuron
    return found


def settings(plain_part: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a part as plain data; its class may have a different name now."""
    return {name: _listed(value) for name, value in plain_part.items() if name not in ("kind", "about")}


def missing(neurons: Mapping[str, Neuron]) -> str | None:
    """The class of the first neuron that was not provided."""
    return next((str(n.stored["kind"]) for n in neurons.values() if isinstance(n, Absent)), None)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
