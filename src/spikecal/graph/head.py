"""The analog head: the part of a traced model that depends on what the user keeps, as a separate fx module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import fx, nn

from spikecal.errors import ConversionError
from spikecal.graph.lowering.trace import Traced
from spikecal.graph.lowering.values import Ref

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
Reads = Mapping[fx.Node, Mapping[fx.Node, Any]]  # node -> its argument nodes -> their values when it ran


@dataclass
class Head:
    """Collects what the head needs, then copies it in running order.

    `producer` is the traced node behind each canonical value that depends on a kept part. Reading values through it,
    rather than through the traced node that the model names, keeps in-place changes right.
    """

    reads: Reads
    kept: set[str]
    producer: Mapping[str, fx.Node]
    needed: set[fx.Node] = field(default_factory=set)

    def source(self, reader: fx.Node, argument: fx.Node) -> fx.Node | str:
        """The source of an argument of the head: another of its nodes, or the value of a body's node, by name."""
        value = self.reads[reader][argument]
        if not isinstance(value, Ref):
            return argument
        return self.producer[value.name] if value.name in self.kept else value.name

    def require(self, output: fx.Node) -> None:
        todo = [output]
        while todo:
            node = todo.pop()
            if node not in self.needed:
                self.needed.add(node)
                sources = [self.source(node, argument) for argument in self.reads.get(node, {})]
                todo.extend(source for source in sources if isinstance(source, fx.Node))


def build_head(
    traced: Traced, nodes: Sequence[fx.Node], reads: Reads, kept: set[str], producer: Mapping[str, fx.Node]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The head and the names of the canonical nodes whose values it takes, in order."""
    head = Head(reads, kept, producer)
    head.require(nodes[-1])
    inner = [node for node in nodes if node in head.needed]
    names: dict[str, None] = {}
    for node in inner:
        sources = [head.source(node, argument) for argument in reads.get(node, {})]
        names.update(dict.fromkeys(source for source in sources if isinstance(source, str)))
    graph = fx.Graph()
    values: dict[fx.Node | str, fx.Node] = {}
    for i, name in enumerate(names):
        values[name] = graph.placeholder(f"body_{i}")
    if any(node.meta.get("changes") or node.meta.get("spoils") for node in inner):
        for name in names:  # the head must not overwrite the body's values
            values[name] = graph.call_method("clone", (values[name],))
    for node in inner:
        values[node] = graph.node_copy(node, _lookup(head, node, values))
    return fx.GraphModule(traced.root, graph, "Head"), tuple(names)


def _lookup(head: Head, node: fx.Node, values: Mapping[fx.Node | str, fx.Node]) -> Callable[[fx.Node], fx.Node]:
    return lambda argument: values[head.source(node, argument)]


def kept_parts(model: nn.Module, keep: Sequence[str]) -> tuple[str, ...]:
    """The names in `keep`; a ModuleList or ModuleDict, which is never called, stands for its members."""
    modules = dict(model.named_modules())
    found: dict[str, None] = {}
    for name in keep:
        members = list(modules[name].named_children()) if isinstance(modules.get(name), CONTAINERS) else []
        inner = kept_parts(model, [f"{name}.{member}" for member, _ in members]) if members else (name,)
        found.update(dict.fromkeys(inner))
    return tuple(found)


def check_keep(keep: Sequence[str], root: nn.Module, sites: Mapping[fx.Node, str]) -> None:
    """Raise if a name in `keep` is not part of the model or never called; of a list, some members may be unused."""
    modules = {name: module for name, module in root.named_modules() if name}
    places = {name for node, name in sites.items() if node.op not in ("placeholder", "output")}
    for name in keep:
        if name in places:
            continue
        if name not in modules:
            known = sorted({*modules, *places})
            close = get_close_matches(name, known, n=5, cutoff=0.4) or known[-5:]
            raise ConversionError(name, "there is no such part to keep", f"did you mean {', '.join(close)}?")
        listed = isinstance(modules.get(name.rpartition(".")[0]), CONTAINERS)
        if not listed and not any(name.startswith(f"{other}.") for other in keep):
            hint = "keep a module that is called as a whole"
            raise ConversionError(name, "the model never calls this module, so it cannot be kept", hint)
