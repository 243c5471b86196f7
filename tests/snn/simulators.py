"""Networks that wait, simulated a second time: step by step in global time, by the plain rules."""

import torch
from torch import Tensor

from spikecal import SpikingNetwork
from spikecal.graph.ops import Joint, MaxPool, Spike
from spikecal.graph.stages import Stage
from spikecal.snn import execute


def in_global_time(snn: SpikingNetwork, x: Tensor) -> dict[str, Tensor]:
    """Levels by the plain rule: at each step of global time a membrane gets what its inputs send at that very step.

    Its biases enter from the step when all inputs have started, T times; it may fire `wait` steps later, T times.
    Joints and max-pools read step j of each input at once.
    """
    starts: dict[str, int] = {snn.graph.inputs()[0]: 0}
    values: dict[str, Tensor] = {snn.graph.inputs()[0]: x.expand(snn.T, *x.shape)}
    found = {}
    for stage in snn.stages:
        arrival = max(starts[name] for name in stage.inputs)
        start = starts[stage.name] = arrival + snn.waits.get(stage.name, 0)
        op = stage.end.op
        pools = any(isinstance(node.op, MaxPool) for node in stage.nodes)
        if isinstance(op, Joint) or pools:
            current = execute.current(
                stage, {n: values[n] for n in stage.inputs}, snn.T, snn._shapes_for((x,)), execute.Memory()
            ).expand(snn.T, -1, *[-1] * (len(snn._shapes_for((x,))[stage.name]) - 1))
            arriving = {arrival + t: current[t] for t in range(snn.T)}
        else:
            arriving = global_currents(snn, stage, values, starts, arrival)
        if isinstance(op, Joint):
            values[stage.name] = torch.stack([op(arriving[arrival + t]) for t in range(snn.T)])
            continue
        assert isinstance(op, Spike)
        cells = op.cells(next(iter(arriving.values())).ndim)
        v = torch.zeros_like(next(iter(arriving.values())))
        if cells.v_init is not None:
            v = v + cells.v_init
        fired = []
        for now in range(start + snn.T):
            v = v + arriving.get(now, torch.zeros_like(v))
            if cells.bias is not None and arrival <= now < arrival + snn.T:
                v = v + cells.bias
            if now >= start:
                spikes = (v >= cells.theta).to(v.dtype)
                v = v - spikes * cells.theta
                fired.append(spikes)
        found[stage.name] = torch.stack(fired).int()
        values[stage.name] = torch.stack(fired) * cells.theta
    return found


def global_currents(
    snn: SpikingNetwork, stage: Stage, values: dict[str, Tensor], starts: dict[str, int], arrival: int
) -> dict[int, Tensor]:
    silence = {name: torch.zeros_like(values[name][0]) for name in stage.inputs}
    own = linear(snn, stage, silence)
    found = {}
    for now in range(arrival + snn.T):
        sent = {
            name: values[name][now - starts[name]] if 0 <= now - starts[name] < snn.T else silence[name]
            for name in stage.inputs
        }
        found[now] = linear(snn, stage, sent) - own + (own if now >= arrival else 0)
    return found


def linear(snn: SpikingNetwork, stage: Stage, inputs: dict[str, Tensor]) -> Tensor:
    """The current that a stage makes of its inputs in one step."""
    shapes = {**snn._shapes[next(iter(snn._shapes))], **{name: value.shape for name, value in inputs.items()}}
    return execute.current(stage, {n: v[None] for n, v in inputs.items()}, 1, shapes, None)[0]


def pipelined(snn: SpikingNetwork, images: list[Tensor], interval: int) -> list[dict[str, Tensor]]:
    """Levels of images that follow each other. A layer has one membrane, reset when an image first reaches it."""
    starts, layers = snn.windows.starts, [stage for stage in snn.stages if stage.spiking]
    fired: list[dict[str, list[Tensor]]] = [{stage.name: [] for stage in layers} for _ in images]
    v: dict[str, Tensor] = {}

    def current_image(now: int, start: int) -> int | None:
        return next((k for k in range(len(images)) if 0 <= now - k * interval - start < snn.T), None)

    for now in range(snn.windows.end + interval * (len(images) - 1)):
        k = current_image(now, 0)
        sent = {snn.graph.inputs()[0]: torch.zeros_like(images[0]) if k is None else images[k]}
        for stage in layers:
            arrival, op = snn.windows.arrival(stage), stage.end.op
            own = linear(snn, stage, {name: torch.zeros_like(sent[name]) for name in stage.inputs})
            cells = op.cells(own.ndim)  # type: ignore[operator]
            first = min(starts.get(name, 0) for name in stage.inputs)
            if now >= first and (now - first) % interval == 0:
                v[stage.name] = torch.zeros_like(own)
            biased = current_image(now, arrival) is not None
            arriving = linear(snn, stage, {name: sent[name] for name in stage.inputs}) - own
            v[stage.name] = v.get(stage.name, torch.zeros_like(own)) + arriving + (own + cells.bias if biased else 0)
            k = current_image(now, starts[stage.name])
            spikes = torch.zeros_like(own) if k is None else (v[stage.name] >= cells.theta).to(own.dtype)
            v[stage.name] = v[stage.name] - spikes * cells.theta
            sent[stage.name] = spikes * cells.theta
            if k is not None:
                fired[k][stage.name].append(spikes.int())
    return [{name: torch.stack(steps) for name, steps in of.items()} for of in fired]
