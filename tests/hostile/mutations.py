"""What hostile files say: first each setting by itself with values of wrong kinds, then several at random."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from hostile.subjects import Parts, places
from torch import Tensor

from spikecal.graph.ops import OPS
from spikecal.snn.description import MAX_NODES

Named = tuple[str, Parts]

WRONG: Sequence[Any] = (
    None, True, -1, 0, 1, 3, 17, 2**16 + 1, 2**40, 10**30, 0.5, 1e30, 1e31, float("nan"), float("inf"), -2.0, "", "x",
    "nearest", [], [1], [2, 2], [0, 0], [-1, 1], [True, 1], [1.5, 2.5], [2**16, 2**16], [3, 3], [1, 1, 1], [2, 2, 2, 2],
    [None, 4], ["batch"], ["slice", 0, 1, 0], [["batch"], -1, -1], [["size", 7, 2], ["size", 0, 2]], [["//", 1, 0], 8],
    [["batch"], ["size", 0, 99]], [["*", 2**30, 2**30], ["*", 2**30, 2**30]], [["?", 1, 1]], {}, {"a": 1}, [[]], [{}],
    [1] * 40,
)  # fmt: skip
TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda t: t.new_zeros(0),
    "no rows": lambda t: t[:0].clone(),
    "a number": lambda t: t.new_ones(()),
    "one number": lambda t: t.new_ones(1),
    "three numbers": lambda t: t.new_ones(3),
    "another dimension": lambda t: t.unsqueeze(-1).clone(),
    "half of it": lambda t: t[: max(1, len(t) // 2)].clone(),
    "twice": lambda t: torch.cat([t, t]),
    "zeros": torch.zeros_like,
    "negative": lambda t: -torch.ones_like(t),
    "NaN": lambda t: t * torch.nan,
    "infinite": lambda t: t + torch.inf,
    "almost zero": lambda t: torch.full_like(t, 1e-42),
    "huge": lambda t: torch.full_like(t, 3e38),
    "doubles": lambda t: t.double(),
    "halves": lambda t: t.half(),
    "whole numbers": lambda t: t.to(torch.int64),
    "yes or no": lambda t: t > 0,
}
NAMES = ("", "a/b", "a..b", ".", "..", "%2F", "\x1b[2J", "x" * 600, "values", "é\u202e", "a:b", "\ud800", "__class__")
STEPS = ("0", "04", "many", "-1", "1048577", "9" * 5000, "3", "٣", "")


def files(bases: Sequence[Parts], generator: random.Random, count: int) -> Iterator[Named]:
    """`count` files: those that are made for one check each, every setting and tensor, and then random ones."""
    made = 0
    for named in (*_special(bases[0]), *_histograms(bases[1]), *_systematic(bases, generator, count)):
        yield named
        made += 1
    for _ in range(count - made):
        parts = generator.choice(bases).copy()
        done = [generator.choice(RANDOM)(parts, generator) for _ in range(generator.choice((1, 1, 2, 3)))]
        yield "; ".join(done), parts


def _systematic(bases: Sequence[Parts], generator: random.Random, count: int) -> list[Named]:
    """Every setting, entry and tensor with some wrong values; with all of them if the number of files allows."""
    found: list[Named] = []
    for base in bases:
        for place in places(base.spec):
            if place[0] == "info" and len(place) > 6:
                continue
            for value in generator.sample(WRONG, 3 if "config" in place else 1):
                parts = base.copy()
                _put(parts.spec, place, value)
                found.append((f"{place} is {value!r}", parts))
    for key in bases[0].tensors:
        names = generator.sample(sorted(TENSORS), 3)
        found += [(f"{key}: {name}", _with_tensor(bases[0], key, name)) for name in names]
    generator.shuffle(found)
    return found[: count * 3 // 4]


def _special(base: Parts) -> Iterator[Named]:
    """One for each check that random values would rarely reach."""

    def changed(what: str, change: Callable[[Any], Any]) -> Named:
        parts = base.copy()
        change(parts.spec)
        return what, parts

    def node(spec: Any, op: str) -> Any:
        return next(entry for entry in spec["nodes"] if entry["op"] == op)

    def setting(op: str, **settings: Any) -> Named:
        return changed(f"{op} with {settings}", lambda spec: node(spec, op)["config"].update(settings))

    def nested(depth: int, size: Any = 1) -> Any:
        return size if depth == 0 else ["+", nested(depth - 1, size), 1]

    def bushy(depth: int) -> Any:
        return 1 if depth == 0 else ["+", bushy(depth - 1), bushy(depth - 1)]

    def output(depth: int) -> Any:
        return "out" if depth == 0 else {"list": [output(depth - 1)]}

    filler = {"op": "Flatten", "inputs": ["x"], "shapes": [], "config": {}}
    many = [{**filler, "name": f"n{i}"} for i in range(MAX_NODES)]
    yield changed("too many nodes", lambda spec: spec["nodes"].extend(many))
    yield changed("too many repeated", _repeat)
    yield changed("a node that nothing reads", lambda spec: spec["nodes"].append({**filler, "name": "unread"}))
    yield changed("a table in place of a name", lambda spec: node(spec, "Conv").update(name={}))
    yield changed("two of one name", lambda spec: spec["nodes"][2].update(name=spec["nodes"][1]["name"]))
    yield changed("an operation that there is not", lambda spec: node(spec, "Conv").update(op="System"))
    yield changed("an unknown setting", lambda spec: node(spec, "Conv")["config"].update(hook=1))
    yield changed("a forward reference", lambda spec: node(spec, "Conv").update(inputs=["out"]))
    yield changed("no input", lambda spec: node(spec, "Conv").update(inputs=[]))
    yield changed("an output from nowhere", lambda spec: spec.update(output="nowhere"))
    yield changed("a deep output", lambda spec: spec.update(output=output(40)))
    yield changed("an output of two kinds", lambda spec: spec.update(output={"list": [], "tuple": []}))
    yield changed("an output of another kind", lambda spec: spec.update(output={"set": ["out"]}))
    yield changed("an output without a name", lambda spec: spec.update(output={"dict": [["out"]]}))
    yield changed("a list for waits", lambda spec: spec.update(waits=[]))
    yield changed("a wait of words", lambda spec: spec.update(waits={"4": {"left": "long"}}))
    yield changed("a wait of nobody", lambda spec: spec.update(waits={"4": {"nobody": 1}}))
    yield changed("a wait past the end", lambda spec: spec.update(waits={"4": {"left": 4}}))
    yield changed("warm-ups of no T", lambda spec: spec.update(warm_ups={"99": 1}))
    yield changed("a warm-up past the end", lambda spec: spec.update(warm_ups={"4": 4}))
    yield changed("a readout of its own", lambda spec: spec["info"].update(readout="guess"))
    for odd in ([], {"a": 1}, {"a": {}}, {"a": {"kind": "os:system"}}, {"leaky": {"kind": 7, "about": {"name": []}}}):
        yield changed(f"neurons {odd}", lambda spec, odd=odd: spec.update(neurons=odd))
    for odd in (1, [1], [[]], [[0]], [[2**30, 2**30]], [["x"]], [[True]]):
        yield changed(f"inputs {odd}", lambda spec, odd=odd: spec["info"].update(inputs=odd))
    for odd in ({"size": [8]}, {"size": "8"}, {"mean": 1, "std": 1}, {"mean": [1.0], "std": [0]}, {"mean": [1.0]}):
        yield changed(f"a card {odd}", lambda spec, odd=odd: spec["info"].update(card={"name": "net", **odd}))
    yield changed("micro-batches by words", lambda spec: spec["info"].update(micro_batch={"many": 1}))
    yield changed("records of numbers", lambda spec: spec["info"].update(records=[1]))
    yield changed("no head", lambda spec: spec.update(head="yes"))
    yield changed("no info", lambda spec: spec.update(info=[]))
    yield changed("no parameters", lambda spec: spec.update(parameters={}))
    yield changed("a parameter of nobody", lambda spec: spec["parameters"]["4"].update({"nobody:theta": "x"}))
    yield changed("two inputs of one number", _second_input)
    yield changed("channels at the batch", lambda spec: node(spec, "Conv").update(channel=0))
    yield changed("no stage", _without_stages)
    yield changed("weights in two stages", _second_reader)
    yield changed("no threshold", lambda spec: spec["parameters"]["4"].pop("left:theta"))
    yield changed("no weight", lambda spec: spec["parameters"]["4"].pop("stem.conv:weight"))
    yield changed("an affine map of nothing", _empty_affine)
    yield setting("Reshape", shape=[["batch"], nested(40)])
    yield setting("Reshape", shape=[["batch"], bushy(10)])
    yield setting("Reshape", shape=[["batch"], 4, -1, -1])
    yield setting("Reshape", shape=[1, 4, -1])
    yield setting("Upsample", scale=[2.0])
    yield setting("Upsample", scale=[2.0, 2000.0])
    yield setting("Upsample", mode="nearest", scale=None, size=[0, 0])
    yield setting("Upsample", mode="nearest", align_corners=True)
    yield setting("Upsample", align_corners=1)
    yield setting("Upsample", size=[8, 8])
    yield setting("AvgPool", padding=[2, 2])
    yield setting("AvgPool", kernel=[2], stride=[2], padding=[0], divisor_override=2)
    yield setting("ConvTranspose", output_padding=[2, 2])
    yield setting("ConvTranspose", groups=3)
    yield setting("Add", coefficients=[1, 1])
    yield setting("Slice", index=[["slice", None, None, None], ["slice", 0, 4, 0]])
    yield setting("Slice", index=[1])
    yield setting("Slice", index=1)
    yield setting("Pad", pad=[1] * 40)
    yield setting("Pad", mode="mirror")
    yield setting("Flatten", start=2, end=1)
    yield setting("Permute", dims=[1, 0, 2])
    yield setting("Permute", dims=[0, 1, 1])
    yield setting("Reduce", dims=[1, 1])
    yield setting("Spike", neuron="leaky")
    yield setting("Spike", neuron=["integrate-and-fire"])
    yield setting("Spike", channel=4)
    yield setting("SignedSpike", neuron="integrate-and-fire")
    yield setting("SignedSpike", clip=6.0)
    for op in OPS.values():
        for name, default in op.CONFIG.items():
            if default is ...:
                yield changed(f"{op.__name__} without {name}", _without(op.__name__, name))
    for key, name in (("stem.conv:weight", "no rows"), ("out:bias", "twice"),
                      ("stem.conv:bias", "three numbers"), ("fc:weight", "no rows"),
                      ("fc:bias", "one number"), ("fc:weight", "a number"), ("left:step_bias", "one number"),
                      ("left:step_bias", "twice"), ("left:theta", "a number"), ("left:theta", "almost zero"),
                      ("left:theta", "three numbers"), ("stem.act:v_init", "another dimension"),
                      ("trunk:bias", "three numbers"), ("trunk:bias", "another dimension"), ("fc:weight", "NaN"),
                      ("fc:weight", "doubles"), ("stem.conv:weight", "a number")):  # fmt: skip
        yield f"{key}: {name}", _with_tensor(base, base.spec["parameters"]["4"][key], name)
    parts = base.copy()
    parts.tensors["unit"] = torch.ones(2, 2)
    parts.spec["parameters"]["4"]["pool:unit"] = "unit"
    yield "a unit of two dimensions", parts
    yield from _descriptions(base)


def _histograms(base: Parts) -> Iterator[Named]:
    """Data beside the networks is drawn in reports."""
    for key in base.tensors:
        if key.startswith("extra:"):
            for name in ("yes or no", "doubles", "negative"):
                yield f"{key}: {name}", _with_tensor(base, key, name)


def _descriptions(base: Parts) -> Iterator[Named]:
    """Whole descriptions that are something else."""
    for value in ([], 1, None, {"format": True}, {"format": 9}):
        yield f"a description that is {value!r}", Parts(value, base.tensors)
    yield "a node that is a list", Parts({**base.spec, "nodes": [[]]}, base.tensors)
    yield (
        "inputs that are no list",
        Parts({**base.spec, "nodes": [{**base.spec["nodes"][1], "inputs": 1}]}, base.tensors),
    )


def _without(op: str, name: str) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        for entry in spec["nodes"]:
            if entry["op"] == op:
                entry["config"].pop(name)

    return change


def _repeat(spec: Any) -> None:
    """A chain of rearrangements that many joints read: every stage repeats it."""
    spec["nodes"] = spec["nodes"][:1]
    last, count = "x", 1200
    for i in range(count):
        spec["nodes"].append({"name": f"p{i}", "op": "Pad", "inputs": [last], "shapes": [], "config": {"pad": [0, 0]}})
        last = f"p{i}"
    for i in range(count):
        spec["nodes"].append({"name": f"j{i}", "op": "Joint", "inputs": [last], "shapes": [], "config": {}})
    spec.update(output={"list": [f"j{i}" for i in range(count)]}, parameters={"4": {}}, waits={}, warm_ups={})


def _second_input(spec: Any) -> None:
    spec["nodes"].insert(1, {"name": "x2", "op": "Input", "inputs": [], "shapes": [], "config": {"index": 0}})


def _second_reader(spec: Any) -> None:
    spec["nodes"].append({"name": "also", "op": "Joint", "inputs": ["stem.conv"], "shapes": [], "config": {}})
    spec["output"] = {"list": ["out", "also"]}


def _without_stages(spec: Any) -> None:
    spec.update(nodes=spec["nodes"][:1], output="x", parameters={"4": {}})


def _empty_affine(spec: Any) -> None:
    for kind in ("scale", "shift"):
        spec["parameters"]["4"].pop(f"affine:{kind}")


def _with_tensor(base: Parts, key: str, name: str) -> Parts:
    parts = base.copy()
    parts.tensors[key] = TENSORS[name](base.tensors[key])
    return parts


def _put(spec: Any, place: Sequence[Any], value: Any) -> None:
    for key in place[:-1]:
        spec = spec[key]
    spec[place[-1]] = value


# -- at random -----------------------------------------------------------------------------------------------------


def _any_place(parts: Parts, generator: random.Random) -> str:
    found = list(places(parts.spec)) if isinstance(parts.spec, dict) else []
    if not found:
        return "nothing"
    place, value = generator.choice(found), generator.choice(WRONG)
    _put(parts.spec, place, value)
    return f"{place} is {value!r}"


def _any_setting(parts: Parts, generator: random.Random) -> str:
    entry = _node(parts, generator)
    if entry is None or not isinstance(entry.get("config"), dict) or not entry["config"]:
        return "nothing"
    name, value = generator.choice(sorted(entry["config"])), generator.choice(WRONG)
    entry["config"][name] = value
    return f"{entry.get('name')}.{name} is {value!r}"


def _without_something(parts: Parts, generator: random.Random) -> str:
    found = list(places(parts.spec)) if isinstance(parts.spec, dict) else []
    if not found:
        return "nothing"
    place = generator.choice(found)
    holder = parts.spec
    for key in place[:-1]:
        holder = holder[key]
    del holder[place[-1]]
    return f"no {place}"


def _rewired(parts: Parts, generator: random.Random) -> str:
    entry, other = _node(parts, generator), _node(parts, generator)
    if entry is None or other is None:
        return "nothing"
    key = generator.choice(("inputs", "inputs", "shapes"))
    entry[key] = generator.choice(([other.get("name")], [other.get("name")] * 3, []))
    return f"{entry.get('name')} reads {entry[key]}"


def _other_operation(parts: Parts, generator: random.Random) -> str:
    entry, other = _node(parts, generator), _node(parts, generator)
    if entry is None or other is None:
        return "nothing"
    entry["op"], entry["config"] = other.get("op"), other.get("config")
    return f"{entry.get('name')} is a {entry['op']}"


def _renamed(parts: Parts, generator: random.Random) -> str:
    """Another name for a node wherever it is mentioned."""
    entry = _node(parts, generator)
    old, new = None if entry is None else entry.get("name"), generator.choice(NAMES)
    if not isinstance(old, str) or not isinstance(parts.spec.get("parameters"), dict):
        return "nothing"

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {_slot(key, old, new): renamed(part) for key, part in value.items()}
        if isinstance(value, list):
            return [renamed(part) for part in value]
        return new if value == old else value

    parts.spec = renamed(parts.spec)
    return f"{old} is called {new!r}"


def _slot(key: str, old: str, new: str) -> str:
    return f"{new}:{key.rpartition(':')[2]}" if key.rpartition(":")[0] == old else new if key == old else key


def _other_tensor(parts: Parts, generator: random.Random) -> str:
    key, name = generator.choice(sorted(parts.tensors)), generator.choice(sorted(TENSORS))
    try:
        parts.tensors[key] = TENSORS[name](parts.tensors[key])
    except (RuntimeError, TypeError, IndexError):
        return "nothing"
    return f"{key}: {name}"


def _other_key(parts: Parts, generator: random.Random) -> str:
    tables = parts.spec.get("parameters") if isinstance(parts.spec, dict) else None
    table = generator.choice(list(tables.values())) if isinstance(tables, dict) and tables else None
    if not isinstance(table, dict) or not table:
        return "nothing"
    slot, key = generator.choice(sorted(table)), generator.choice(sorted(parts.tensors))
    table[slot] = key
    return f"{slot} is {key}"


def _other_steps(parts: Parts, generator: random.Random) -> str:
    tables = parts.spec.get("parameters") if isinstance(parts.spec, dict) else None
    if not isinstance(tables, dict) or not tables:
        return "nothing"
    old, new = generator.choice(sorted(tables)), generator.choice(STEPS)
    tables[new] = tables.pop(old)
    return f"T = {new[:10]}"


def _node(parts: Parts, generator: random.Random) -> dict[str, Any] | None:
    nodes = parts.spec.get("nodes") if isinstance(parts.spec, dict) else None
    entry = generator.choice(nodes) if isinstance(nodes, list) and nodes else None
    return entry if isinstance(entry, dict) else None


RANDOM: Sequence[Callable[[Parts, random.Random], str]] = (
    _any_place, _any_setting, _any_setting, _without_something, _rewired, _other_operation, _renamed, _other_tensor,
    _other_key, _other_steps,
)  # fmt: skip
