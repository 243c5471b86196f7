"""Steps that a stage has not read wait for it: none is lost, doubled or out of order."""

import torch
from torch import Tensor

from spikecal.graph.graph import Node
from spikecal.graph.ops import Joint
from spikecal.graph.stages import Stage
from spikecal.snn.walk import Edges
from spikecal.snn.windows import Windows


def stage(name: str, *inputs: str) -> Stage:
    return Stage((Node(name, Joint(channel=1), inputs[:1]),), inputs)


def steps(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).reshape(-1, 1, 1)


def test_a_stage_takes_the_steps_it_is_asked_for_from_queues_of_its_own() -> None:
    both, one = stage("both", "a", "b"), stage("one", "a")
    edges = Edges(Windows(20, [both, one]))

    def taken(reader: Stage, there: int) -> dict[str, list[int]]:
        values = edges.take(reader, there)
        return {name: value.expand(there, 1, 1).flatten().tolist() for name, value in values.items()}

    edges.put("a", steps(0, 1, 2, 3, 4), 5)
    assert taken(one, 5) == {"a": [0, 1, 2, 3, 4]}  # each reader has a queue of its own
    edges.put("b", steps(10, 11), 2)
    assert taken(both, 2) == {"a": [0, 1], "b": [10, 11]}
    edges.put("b", steps(12), 4)  # the same at four steps
    assert taken(both, 3) == {"a": [2, 3, 4], "b": [12, 12, 12]}
    edges.put("a", steps(5), 2)
    edges.put("a", steps(6, 7), 2)
    edges.put("b", steps(13, 14), 2)
    assert taken(both, 3) == {"a": [5, 5, 6], "b": [12, 13, 14]}
    edges.put("b", steps(15), 1)
    assert taken(both, 1) == {"a": [7], "b": [15]}
    edges.put("a", steps(8, 9), 2)
    edges.put("a", steps(10, 11), 2)
    edges.put("b", steps(16), 1)
    assert taken(both, 1) == {"a": [8], "b": [16]}
    edges.put("b", steps(17, 18, 19), 3)
    assert taken(both, 3) == {"a": [9, 10, 11], "b": [17, 18, 19]}  # what was left comes first
