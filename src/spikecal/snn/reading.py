"""Read `.snn` files: header, tensors, checksum and description are checked in full, and no code runs."""

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn

from spikecal.errors import ConfigError, FileError, first_line, shown
from spikecal.files import load_tensors, open_regular
from spikecal.graph.graph import Graph
from spikecal.graph.ops.base import require
from spikecal.memory import free_memory
from spikecal.neurons import Neuron
from spikecal.snn.checksum import checksum
from spikecal.snn.description import check_description, check_format, graph_of
from spikecal.snn.network import Readout, SpikingNetwork
from spikecal.snn.origin import Origin
from spikecal.snn.own_neurons import Given, absent_neurons, given_neurons

MAX_HEADER = 64 * 2**20
DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
NOT_WHOLE = (SafetensorError, ConfigError, ValueError, TypeError, KeyError, IndexError, AttributeError,
             RecursionError, OverflowError)  # fmt: skip


class Reader:
    """An opened and checked `.snn` file."""

    def __init__(self, path: str | Path, neurons: Sequence[Given] = ()) -> None:
        """`neurons`: the file's own neurons, provided by the user."""
        self.path = Path(path)
        try:
            header = self._header()
            self.bytes = _checked_tensors(header, self._data_bytes)
            self._read(header, neurons)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
        except ConfigError as error:  # about neurons provided by the user
            raise FileError(f"{path}: {error}") from error
        except NOT_WHOLE as error:
            raise self._not_whole(error) from error

    def _not_whole(self, error: Exception) -> FileError:
        reason = f"{shown(error.args[0])} is missing" if isinstance(error, KeyError) else first_line(error)
        return FileError(f"{self.path} is not a complete spikecal network: {reason}")

    def _header(self) -> dict[str, Any]:
        with open_regular(self.path) as file:
            size = self.path.stat().st_size
            start = file.read(8)
            require(len(start) == 8, "it is too short")
            (length,) = struct.unpack("<Q", start)
            require(length <= min(MAX_HEADER, size - 8), "its header does not fit, or the file is truncated")
            raw = file.read(length)
        require(raw.startswith(b"{") and raw.rstrip(b" ").endswith(b"}"), "it has no header")
        self._data_bytes = size - 8 - length
        if self._data_bytes > (free := free_memory()):  # a sparse file may claim any size
            raise FileError(f"{self.path} needs {self._data_bytes:,} bytes of memory, but {free:,} are free")
        header = json.loads(raw.decode())
        require(isinstance(header, dict) and isinstance(header.get("__metadata__"), dict), "it has no metadata")
        described = isinstance(header["__metadata__"].get("spikecal"), str)
        require(described, "it is a safetensors file of something else")
        return header

    def _read(self, header: dict[str, Any], neurons: Sequence[Given]) -> None:
        expected, _, description = header["__metadata__"]["spikecal"].partition(" ")
        self.spec = json.loads(description)
        check_format(self.spec)
        check_description(self.spec, self.bytes)
        stored = self.spec.get("neurons", {})
        self.neurons: dict[str, Neuron] = {**absent_neurons(stored), **given_neurons(stored, neurons)}
        self.tensors = load_tensors(self.path)
        require(checksum(description, self.tensors.items()) == expected, "its checksum does not match: it is damaged")

    # -- what is in it -----------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        return sorted(int(T) for T in self.spec["parameters"])

    def readout(self) -> Readout:
        """How outputs that are activations are read; in files that do not state it, as currents."""
        return "spikes" if self.spec["info"].get("readout") == "spikes" else "current"

    def waits(self, T: int) -> dict[str, int]:
        """The stages that wait in the network for `T` steps."""
        return dict(self.spec.get("waits", {}).get(str(T), {}))

    def warm_up(self, T: int) -> int:
        """The first steps of each output that the network for `T` steps ignores."""
        return int(self.spec.get("warm_ups", {}).get(str(T), 0))

    def origin(self) -> Origin:
        """The origin of its networks."""
        return Origin.from_info(self.spec["info"], self.steps())

    def graph(self, T: int) -> Graph:
        """The graph for `T` steps, without its head."""
        try:
            return graph_of(self.spec, T, self.tensors, self.neurons)
        except NOT_WHOLE as error:
            raise self._not_whole(error) from error

    def network(self, T: int, head: nn.Module | None) -> SpikingNetwork:
        """The network for `T` steps, as it was when it was written."""
        graph = self.graph(T)
        graph.head = head
        try:
            network = SpikingNetwork(graph, T, self.waits(T))
        except NOT_WHOLE as error:
            raise self._not_whole(error) from error
        network.origin, network.readout, network.warm_up = self.origin(), self.readout(), self.warm_up(T)
        network.reset()
        return network


def _checked_tensors(header: dict[str, Any], data_bytes: int) -> dict[str, int]:
    """The bytes of every tensor, checked to lie inside the file, fit its shape, and fill the file without overlap."""
    spans, found = [], {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and len(shape) <= 16
        require(whole, f"it has a damaged entry for {shown(name)}")
        known = isinstance(entry["dtype"], str) and entry["dtype"] in DTYPES
        fits = known and math.prod(shape) * DTYPES[entry["dtype"]] == end - begin
        require(fits, f"it has a damaged entry for {shown(name)}: its size does not match its shape")
        spans.append((begin, end))
        found[name] = end - begin
    position = 0
    for begin, end in sorted(spans):
        require(begin == position and end <= data_bytes, "its tensors do not fill it: it is damaged or truncated")
        position = end
    require(position == data_bytes, "it has bytes that belong to no tensor")
    return found
