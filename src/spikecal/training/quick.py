"""The `quick` recipe: one-cycle SGD for a CPU. Repeats to the bit, resumes after a kill."""

import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Quick:
    epochs: int = 28
    batch: int = 128
    peak_lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warm_up: float = 0.2
    pad: int = 4
    seed: int = 0


def train(
    model: nn.Module, images: Tensor, labels: Tensor, mean: Tensor, std: Tensor, recipe: Quick, checkpoint: Path
) -> nn.Module:
    """Train `model` in place on uint8 `images`; `checkpoint` holds the state after every finished epoch."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = len(images) // recipe.batch
    optimiser = torch.optim.SGD(
        model.parameters(), recipe.peak_lr, recipe.momentum, nesterov=True, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.peak_lr, recipe.epochs * steps, pct_start=recipe.warm_up, cycle_momentum=False
    )
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["recipe"] != asdict(recipe):
            raise ValueError(f"{checkpoint} belongs to another recipe: {state['recipe']}")
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        first = state["epoch"]
    for epoch in range(first, recipe.epochs):
        started, total = time.perf_counter(), 0.0
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
        order = torch.randperm(len(images), generator=generator)
        model.train()
        for step in range(steps):
            chosen = order[step * recipe.batch : (step + 1) * recipe.batch]
            batch = (augment(images[chosen], recipe.pad, generator).float() / 255 - mean) / std
            loss = F.cross_entropy(model(batch.contiguous(memory_format=torch.channels_last)), labels[chosen])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item()
        log.info(
            "epoch %d/%d loss %.4f (%.0f s)", epoch + 1, recipe.epochs, total / steps, time.perf_counter() - started
        )
        part = checkpoint.with_suffix(".part")
        torch.save(
            {
                "recipe": asdict(recipe),
                "model": model.state_dict(),
                "optimiser": optimiser.state_dict(),
                "schedule": schedule.state_dict(),
                "epoch": epoch + 1,
            },
            part,
        )
        os.replace(part, checkpoint)
    return model.eval()


def augment(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Random crop after reflecting `pad` pixels, and a random flip."""
    n, _, height, width = images.shape
    padded = F.pad(images.float(), (pad,) * 4, mode="reflect").to(images.dtype)
    top = torch.randint(0, 2 * pad + 1, (n, 1), generator=generator)
    left = torch.randint(0, 2 * pad + 1, (n, 1), generator=generator)
    flip = torch.rand((n, 1), generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.where(flip, torch.arange(width).flip(0), torch.arange(width))
    index = torch.arange(n)
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
