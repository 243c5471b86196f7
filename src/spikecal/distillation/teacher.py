"""A network to distil images from: what it remembers of its training data, and how far images are from that."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spikecal.data.card import Card
from spikecal.data.fit import fit_tensor
from spikecal.errors import ConfigError
from spikecal.graph.lowering.prepare import SMALL_TYPES
from spikecal.memory import free_memory

SMALLEST = 1e-12  # variance of a constant channel, so that its logarithm is finite
PROBED = 2  # images of the pass that measures the memory per image
VALUES = 16  # values of the first layers per value of an image: the least that this pass needs


class Teacher:
    """A frozen copy of a network in evaluation mode, with its card; `norms` are the layers that remember statistics."""

    def __init__(self, name: str, model: nn.Module, card: Card, device: torch.device | None = None) -> None:
        self.name, self.card = name, card
        self.network = copy.deepcopy(model).eval().requires_grad_(False)
        if any(t.dtype in SMALL_TYPES for t in self.network.state_dict().values()):
            self.network = self.network.float()
        tensors = [t for t in self.network.state_dict().values() if t.is_floating_point()]
        if any(t.device.type == "meta" for t in tensors):
            raise ConfigError(f"{name} is on the meta device, which holds no data: load its weights first")
        if not all(bool(t.isfinite().all()) for t in tensors):
            raise ConfigError(f"{name} has weights or statistics that are not finite: nothing can be matched to them")
        self.network = self.network if device is None else self.network.to(device)
        self.device = device or (tensors[0].device if tensors else torch.device("cpu"))
        self.dtype = tensors[0].dtype if tensors else torch.float32
        self.norms = [module for module in self.network.modules() if _remembers(module)]
        self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster on processors
        self.classes: int | None = None

    def to(self, other: "Teacher") -> None:
        """Move to the device and dtype of `other`: both see the same images."""
        self.device, self.dtype = other.device, other.dtype
        self.network = self.network.to(self.device, self.dtype)

    def probe(self, shape: tuple[int, ...]) -> int:
        """Run the network on images [C, H, W] of the first card; returns the bytes per image of a gradient.

        Sets `classes`, and `norms` to those that are called: others say nothing about images.
        """
        if PROBED * VALUES * math.prod(shape) * self.dtype.itemsize > free_memory(self.device):
            raise _too_large(shape)
        kept: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        images = torch.zeros((PROBED, *shape), device=self.device, dtype=self.dtype, requires_grad=True)
        weights = {t.untyped_storage().data_ptr() for t in self.network.state_dict().values()}
        try:
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                seen, logits = self._answer(images)
                parts = [divergence(value, norm) for norm, value in seen]
        except Exception as error:  # a network may do anything with images that do not fit
            if isinstance(error, MemoryError) or "alloc" in str(error):
                raise _too_large(shape) from error
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{self.name} does not take images of shape {shape}: {reason}") from error
        self.norms = list(dict.fromkeys(norm for norm, _ in seen))
        self.classes = None if logits is None else logits.shape[1]
        told = [*parts, *([] if logits is None else [logits])]
        if told and not any(value.requires_grad for value in told):
            raise ConfigError(
                f"{self.name} cuts off gradients by no_grad or detach: remove that to distil images from it"
            )
        return max(1, sum(size for place, size in kept.items() if place not in weights) // PROBED)

    def divergence(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """How far the statistics of images in 0..1 are from the remembered ones, and the answers [N, K], if classes.

        The mean over layers and channels of KL(N(m, v) || N(μ, σ²)) = ((v + (m − μ)²) / σ² − 1 − ln(v / σ²)) / 2.
        """
        seen, scores = self._answer(pixels)
        parts = [divergence(value, norm) for norm, value in seen]
        return torch.stack(parts).mean() if parts else pixels.new_zeros(()), scores

    def _answer(self, pixels: Tensor) -> tuple[list[tuple[nn.Module, Tensor]], Tensor | None]:
        """The input of each norm, and the answers [N, K], if they are classes."""
        with _entering(self.norms) as seen:
            answer: Any = self.network(self._prepared(pixels))
        is_scores = isinstance(answer, Tensor) and answer.ndim == 2 and answer.shape[1] > 1
        return seen, answer if is_scores else None

    def _prepared(self, pixels: Tensor) -> Tensor:
        pixels = fit_tensor(pixels, self.card)
        if self.card.mean is None or self.card.std is None:
            return pixels
        if pixels.shape[1] == 1 and self.card.channels == 3:
            pixels = pixels.expand(-1, 3, -1, -1)
        mean, std = scale(self.card, pixels)
        return (pixels - mean) / std


def _too_large(shape: tuple[int, ...]) -> ConfigError:
    return ConfigError(f"images of shape {shape} need more memory than is free: give a smaller size")


def scale(card: Card, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the card [C, 1, 1]; 0 and 1 if it has none."""
    mean, std = card.mean or (0.0,), card.std or (1.0,)
    return like.new_tensor(mean).view(-1, 1, 1), like.new_tensor(std).view(-1, 1, 1)


def _remembers(module: nn.Module) -> bool:
    """Whether a layer remembers mean and variance of its training inputs: BN of every kind, also frozen."""
    mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return isinstance(mean, Tensor) and isinstance(var, Tensor) and mean.ndim == 1 and mean.shape == var.shape


@contextmanager
def _entering(norms: list[nn.Module]) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Record the input of each of these layers; they are our own copy, and stay unchanged."""
    seen: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append((module, given[0] if given else next(iter(named.values()))))

    handles = [norm.register_forward_pre_hook(keep, with_kwargs=True) for norm in norms]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class Divergence(torch.autograd.Function):
    """The mean over channels of KL(N(m, v) || N(μ, σ²)) for the mean and variance of a value [N, C, …].

    Its gradient is affine in the value, (m − μ) / σ² + (x − m) (1 / σ² − 1 / v) over the number of values: in closed
    form, it is one pass over memory.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
        _, found, deviation = torch.native_batch_norm(value, None, None, None, None, True, 0.0, eps)
        spread, wanted = deviation.square().reciprocal(), variance + eps
        ctx.save_for_backward(value, found, spread, mean, wanted)
        return ((spread + (found - mean).square()) / wanted - 1 - (spread / wanted).log()).mean() / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        value, found, spread, mean, wanted = ctx.saved_tensors
        slope = wanted.reciprocal() - spread.reciprocal()
        offset = (found - mean) / wanted - found * slope
        scaled = gradients[0] / value.numel()  # channels times values per channel
        shape = (1, -1, *[1] * (value.ndim - 2))
        return torch.addcmul((offset * scaled).view(shape), value, (slope * scaled).view(shape)), None, None, None


def divergence(value: Tensor, norm: Any) -> Tensor:
    """How far the input of a norm is from what it remembers."""
    eps = float(getattr(norm, "eps", 0.0)) + SMALLEST
    found: Tensor = Divergence.apply(value, norm.running_mean, norm.running_var, eps)
    return found


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy per image [N]."""
    return F.cross_entropy(logits, labels, reduction="none")
