"""Clocks as part of the image: extra planes; plane t is all ones at step t and zero at all others.

For targets with only weights and neurons, and nothing that depends on time. Clocks become convolutions of the planes.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spikecal.errors import ConversionError
from spikecal.export.netlist import Clock, Conv, Flatten, Image, Linear, Netlist, Node


def with_planes(netlist: Netlist) -> Netlist:
    """The netlist with clock planes beside the image's channels instead of clocks; other netlists are unchanged."""
    if not netlist.planes:
        return netlist
    image, L = netlist.image, netlist.planes
    wide = replace(
        image,
        shape=(image.shape[0] + L, *image.shape[1:]),
        low=torch.cat([image.low, image.low.new_zeros(L)]),
        high=torch.cat([image.high, image.high.new_ones(L)]),
    )
    changes: dict[str, list[Node]] = {image.name: [wide]}
    for node in netlist.nodes.values():
        if isinstance(node, Clock):
            changes[node.name] = _ticking(node, wide, L)
        elif image.name in node.inputs:
            changes[node.name] = _of_pixels(node, image, L)
    return netlist.replaced(changes)


def frames(images: Tensor, T: int, latency: int, planes: int) -> Tensor:
    """The input at each step, `[latency, N, C + planes, ...]`: the image for T steps, and the clock."""
    sides = images.shape[2:]
    found = images.new_zeros(latency, len(images), images.shape[1] + planes, *sides)
    found[:T, :, : images.shape[1]] = images
    for t in range(planes):
        found[t, :, images.shape[1] + t] = 1
    return found


def _ticking(clock: Clock, image: Image, L: int) -> list[Node]:
    """A clock as weights on the planes. Planes are uniform, so any stride and kernel that give its size will do."""
    schedule = (clock.own + clock.gate).T  # [C, L]
    weight = torch.cat([schedule.new_zeros(len(schedule), image.shape[0] - L), schedule], 1)
    if len(image.shape) == 1:
        if len(clock.shape) > 1:
            raise ConversionError(clock.name, "a clock for an image in a network of vectors", "export the two apart")
        return [Linear(name=clock.name, inputs=(image.name,), shape=clock.shape, weight=weight)]
    flat = len(clock.shape) == 1
    places = (1, 1) if flat else clock.shape[1:]
    size, stride = _fit(image.shape[1:], places, clock.name)
    kernel = weight.new_zeros(*weight.shape, size, size)
    kernel[:, :, 0, 0] = weight
    name = f"{clock.name}.plane" if flat else clock.name
    conv = Conv(name=name, inputs=(image.name,), shape=(len(weight), *places), weight=kernel, stride=stride)
    return [conv, Flatten(name=clock.name, inputs=(name,), shape=clock.shape)] if flat else [conv]


def _fit(have: Sequence[int], want: Sequence[int], name: str) -> tuple[int, tuple[int, int]]:
    """The smallest square kernel, and the stride, that turn the image's positions into `want`."""
    for kernel in range(1, min(have) + 1):
        strides = [
            next((stride for stride in range(1, n + 1) if (n - kernel) // stride + 1 == m), None)
            for n, m in zip(have, want, strict=True)
        ]
        if strides[0] is not None and strides[1] is not None:
            return kernel, (strides[0], strides[1])
    sizes = " for an image of ".join("×".join(map(str, size)) for size in (want, have))
    raise ConversionError(name, f"a layer of {sizes}: no clock plane fits it", "export to onnx")


def _of_pixels(node: Node, image: Image, L: int) -> list[Node]:
    """A reader of the image that ignores its planes."""
    if isinstance(node, Conv):
        dense = node.dense()
        blank = dense.weight.new_zeros(dense.weight.shape[0], L, *dense.weight.shape[2:])
        return [replace(dense, weight=torch.cat([dense.weight, blank], 1))]
    if isinstance(node, Linear):
        return [replace(node, weight=torch.cat([node.weight, node.weight.new_zeros(len(node.weight), L)], 1))]
    eye = torch.eye(image.shape[0], image.shape[0] + L, dtype=image.low.dtype)
    name = f"{node.name}.pixels"
    pixels: Node = Linear(name=name, inputs=(image.name,), shape=image.shape, weight=eye)
    if len(image.shape) == 3:
        pixels = Conv(name=name, inputs=(image.name,), shape=image.shape, weight=eye[:, :, None, None])
    return [pixels, replace(node, inputs=tuple(name if n == image.name else n for n in node.inputs))]
