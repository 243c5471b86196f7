"""The whole conversion: a trained network and some images in, a calibrated spiking network out."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spikecal import __version__
from spikecal.arguments import (
    Choice,
    check_model,
    check_pools,
    checked_keep,
    checked_number,
    choices_of,
    example_of,
    home_of,
    image_dims,
    memory_of,
    number_of_inputs,
    plan_of,
)  # fmt: skip
from spikecal.calibration.expected import Expected, expected_energy, expected_rate
from spikecal.calibration.histogram import Histogram
from spikecal.calibration.images import Inputs, collect, labelled
from spikecal.calibration.sweep import StageRecord
from spikecal.choice.heldout import HeldOut
from spikecal.choice.selection import Decision, decide
from spikecal.devices import Device, device_of, placed, whatever_the_default
from spikecal.errors import ConversionError, DataError
from spikecal.graph.graph import Graph, describe
from spikecal.graph.joints import DEFAULT, Joints, checked_joints, staged
from spikecal.graph.lowering.prepare import unwrapped
from spikecal.graph.ops import Spike
from spikecal.graph.stages import partition
from spikecal.memory import freed_memory_kept
from spikecal.phases import Context, histograms, run_phases, set_neurons
from spikecal.pipeline import AUTO, Effort, Plan
from spikecal.planning import show_plan
from spikecal.progress import Watching, watched
from spikecal.ranks import current, together
from spikecal.result import Result
from spikecal.snn.execute import Shapes
from spikecal.snn.network import SpikingNetwork, weights_channels_last
from spikecal.snn.origin import Origin, Timings
from spikecal.workdir import Workdir, fingerprint

logger = logging.getLogger(__name__)

COUNTED = 0.72  # of the memory to use; the allocator holds up to a third more in holes between values


@whatever_the_default
@together
@torch.inference_mode(False)
def convert(
    model: nn.Module,
    images: Any,
    T: int | Sequence[int] | None = None,
    pipeline: Plan | str = AUTO,
    *,
    latency: int | str | None = None,
    effort: Effort | None = None,
    joints: Joints = DEFAULT,
    seed: int = 0,
    keep: Sequence[str] = (),
    workdir: str | Path | None = None,
    memory: int | str | None = None,
    micro_batch: int | None = None,
    records: bool = True,
    progress: Watching = None,
    device: Device = None,
) -> Result:
    """Convert `model` into a calibrated spiking network, or into one for each of several `T`.

    The model is left unchanged: conversion works on a copy in eval mode.

    Args:
        model: A trained network of ReLU and linear operations that `torch.fx` can trace. `spikecal.check` shows
            whether it converts.
        images: A tensor, a dataset or a loader, normalised as in training and not augmented. Labels are ignored,
            except by the pipelines `"hybrid-train"` and `"qcfs"`, which learn from them.
        T: Time steps, or a list for one network each. By default 32, or chosen to fit `latency` if that is given.
        pipeline: How to convert: `AUTO`, which tries several pipelines and keeps the best, another preset or its name
            (`"lcp"`, `"acp"`, …), or a `Pipeline`.
        latency: Steps from the first of the input to the last of the output: a number, `"2x"` for twice T or `"+10"`
            for ten more. Layers wait during the steps beyond T, where that helps.
        effort: How much AUTO tries: `"low"`, `"normal"` or `"high"` take about 5, 20 or 300 times as long as LCP.
        joints: How linear values that weighted layers read are passed on: `"signed"` spikes, `"analog"` currents, or
            `"merge"`, which merges two linear maps where one is cheaper.
        seed: Seed of the calibration images and everything else random. The same seed gives the same bits.
        keep: Names of submodules at the end of the network to keep analog.
        workdir: A folder for finished stages, from which a killed conversion resumes.
        memory: Bytes to use before going to disk, or a size such as `"2G"`; by default half of what is free. This
            does not change the result.
        micro_batch: Images per kernel call; by default chosen from T and the network.
        records: Whether a pipeline without calibrators still simulates some images, to record the errors of its
            stages.
        progress: True for a bar, or a function to call with phase, done and total.
        device: Where to compute; by default where the model is.

    Returns:
        The networks, a record of how they were made, and methods to save, measure and report them.

    Raises:
        ConversionError: The network cannot be converted; the error names every layer in the way and what to do.
        ConfigError: An argument is invalid.
        DataError: The images cannot be used.
    """
    check_model(model)
    model = unwrapped(model)
    keep = checked_keep(keep)
    checked_joints(joints)
    seed = checked_number("seed", seed, 0, 2**63)
    ranks = current()
    micro_batch = None if micro_batch is None else checked_number("micro_batch", micro_batch, 1)
    plan, choices = plan_of(pipeline, effort), choices_of(T, latency)
    plan.fixed.check_usable()
    model = placed(model, device_of(device))
    home, dtype = home_of(model)
    budget = memory_of(memory, ranks.neighbours, home)
    given = images, plan.fixed.images, number_of_inputs(model), seed, image_dims(model)
    found, labels = labelled(*given) if plan.fixed.needs_labels else (collect(*given), None)
    if labels is None and plan.fixed.needs_labels:
        raise DataError("this pipeline learns from labels: give pairs of images and labels")
    chosen = [tuple(x.to(home, dtype) for x in image) for image in found]
    started = time.perf_counter()
    graph = _lowered(model, chosen, keep, plan, joints)
    timings = Timings(lowering=time.perf_counter() - started)
    known = [] if labels is None else [labels.tolist()]
    identity = partial(_identity, graph, chosen, plan, [choices, seed, list(keep), micro_batch, *known])
    ranks.agree("convert", lambda: {**identity(), "working directory": workdir is not None, "records": records})
    work = None if workdir is None else Workdir(Path(workdir), fingerprint([], identity()), ranks=ranks)
    with watched(ranks.shown(progress)) as watcher, work or nullcontext(), freed_memory_kept():
        context = Context(
            ann=graph,
            images=chosen,
            pipeline=plan.fixed,
            seed=seed,
            micro_batch=micro_batch,
            memory=int(COUNTED * budget),
            records=records,
            progress=watcher,
            workdir=work,
            ranks=ranks,
            labels=labels,
        )
        show_plan(context, plan, [max(allowed) for allowed, _ in choices])
        result = _calibrated(context, plan, choices, timings, dtype, Origin(joints=joints))
    result.describe(images=len(chosen), keep=tuple(keep))
    return result


def _lowered(model: nn.Module, images: list[Inputs], keep: Sequence[str], plan: Plan, joints: Joints) -> Graph:
    """The canonical graph of a model; raises if it cannot spike."""
    graph = staged(model, example_of(images), keep, joints)
    if not partition(graph):
        raise ConversionError(type(model).__name__, "a network that computes nothing", "convert one that does")
    if not any(isinstance(node.op, Spike) for node in graph.nodes.values()):
        logger.warning("the network has no ReLU: nothing in it will spike")
    check_pools(graph, plan.fixed)
    weights_channels_last(graph)
    return graph


def _identity(graph: Graph, images: list[Inputs], plan: Plan, settings: list[Any]) -> dict[str, Any]:
    """Everything a conversion depends on: a working directory belongs to one conversion, and ranks must agree on it."""
    return {
        "version": [__version__, torch.__version__],
        "network": fingerprint([], describe(graph)),
        "weights": fingerprint([t for node in graph.nodes.values() for t in node.op.tensors().values()], []),
        "images": fingerprint([x for image in images for x in image], []),
        "settings": [plan.to_dict(), *plan.fixed.own_code(), *settings],
    }


def _expected(network: SpikingNetwork, seen: Mapping[str, Histogram], shapes: Shapes) -> Expected:
    """The energy of a network, from its thresholds and the ANN's activations."""
    ends = {stage.name: stage.end.op for stage in network.stages}
    rates = {
        name: expected_rate(seen[name], op.theta)
        for name, op in ends.items()
        if isinstance(op, Spike) and op.theta is not None and name in seen
    }
    return expected_energy(network.graph, shapes, rates, network.T)


def _calibrated(
    context: Context, plan: Plan, choices: list[Choice], timings: Timings, dtype: torch.dtype, origin: Origin
) -> Result:
    """One network for each choice of T and latency."""
    seen, timings.thresholds = histograms(context)
    per_image = timings.thresholds / min(len(context.images), context.pipeline.threshold.images)
    images = sum(x.nbytes for image in context.images for x in image)
    context = replace(context, memory=context.memory - images - sum(found.counts.nbytes for found in seen.values()))

    held = HeldOut(context, seen, dtype)
    networks: dict[int, SpikingNetwork] = {}
    records: list[StageRecord] = []
    decisions: dict[int, Decision] = {}
    for steps, latency in choices:
        started = time.perf_counter()
        found = decide(plan, held, steps, latency, per_image)
        network = SpikingNetwork(context.ann.clone(), found.T, found.waits)
        set_neurons(network, seen, found.pipeline, dtype, context.shapes, context.ranks)
        records += run_phases(replace(context, pipeline=found.pipeline), network, per_image)
        networks[found.T], decisions[found.T] = network, found
        expected = _expected(network, seen, context.shapes)
        if expected.ratio > 1:
            logger.warning("%s", expected.sentence())
        for warning in found.placement.warnings() if found.placement else []:
            logger.warning("T = %d: %s", found.T, warning)
        timings.steps[found.T] = time.perf_counter() - started
    origin = origin.changed(
        inputs=tuple(tuple(x.shape[1:]) for x in context.images[0]),
        micro_batches={T: context.images_per_call(T) for T in networks if context.phases()},
        placements={T: found.placement.to_dict() for T, found in decisions.items() if found.placement},
        choices={T: found.selection.to_dict() for T, found in decisions.items() if found.selection},
    )
    for network in networks.values():
        network.origin = origin
    return Result(networks, records, {T: found.pipeline for T, found in decisions.items()}, seen, timings, origin)
