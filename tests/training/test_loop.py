"""The training loop: repeatable, resumable, averaged, and clear about what it cannot do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikecal.data.card import Card
from spikecal.data.prepare import Loader
from spikecal.data.sources import Data, load_data
from spikecal.errors import ConfigError, DataError, FileError, SpikecalError, TrainingError
from spikecal.evaluation import accuracy
from spikecal.training import checkpoint
from spikecal.training.loop import EpochRecord, Training, train
from spikecal.training.recipes import QUICK, Recipe
from spikecal.zoo.models import build_model

CARD = Card(name="small", size=(8, 8), mean=(0.5,) * 3, std=(0.25,) * 3)
RECIPE = QUICK.changed(epochs=2, batch=16, pad=2, seed=3)
STEPS = 4  # an epoch


def network(classes: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(24, classes),
    )


def images(seed: int = 0, labels: bool = True) -> Data:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (70, 3, 8, 8), generator=generator, dtype=torch.uint8)
    given = torch.randint(0, 4, (70,), generator=generator) if labels else None
    return Data(name="random", images=pixels, labels=given)


class Stopped(Exception):
    pass


class Watch:
    """Progress that calls a function after every step, and may end the training after so many."""

    def __init__(self, after_step: Callable[[], object] = lambda: None, steps: float = float("inf")) -> None:
        self.after_step, self.steps = after_step, steps
        self.phases: list[tuple[str, int]] = []
        self.notes: list[str] = []

    def phase(self, name: str, total: int, seconds: float | None) -> None:
        self.phases.append((name, total))

    def advance(self, note: str = "") -> None:
        self.notes.append(note)
        self.after_step()
        self.steps -= 1
        if self.steps == 0:
            raise Stopped


def trained(path: Path, recipe: Recipe = RECIPE, **settings: Any) -> Training:
    return train(network(), images(), CARD, recipe, path, **settings)


def same(a: Training, b: Training) -> bool:
    pairs = zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)
    losses = [[record.loss for record in run.history] for run in (a, b)]
    return all(torch.equal(x, y) for x, y in pairs) and losses[0] == losses[1]


# -- the same again ----------------------------------------------------------------------------------------------


def test_stopped_inside_an_epoch_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole.pt")
    assert not whole.model.training
    with pytest.raises(Stopped):
        trained(tmp_path / "c.pt", every=0, progress=Watch(steps=STEPS + 3))
    state = checkpoint.read(tmp_path / "c.pt")
    assert state is not None and (state["epoch"], state["step"]) == (1, 2)  # the third step was not saved
    torch.rand(7)  # dropout does not depend on other random draws
    rest = Watch()
    assert same(trained(tmp_path / "c.pt", every=0, progress=rest), whole)
    assert rest.phases == [("epoch 2/2", 2)]
    assert len(rest.notes) == 2 and rest.notes[-1].endswith("0:00:00 left")
    finished = Watch()
    assert same(trained(tmp_path / "c.pt", progress=finished), whole)
    assert not finished.phases
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["c.pt", "whole.pt"]


def test_between_epochs_there_is_one_checkpoint_unless_time_has_passed(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        trained(tmp_path / "c.pt", progress=Watch(steps=STEPS + 3))
    state = checkpoint.read(tmp_path / "c.pt")
    assert state is not None and (state["epoch"], state["step"]) == (1, 0)


def test_seeds_differ_and_global_randomness_is_left_alone(tmp_path: Path) -> None:
    model = network()
    before = torch.random.get_rng_state()
    first = train(model, images(), CARD, RECIPE, tmp_path / "a.pt")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not same(first, trained(tmp_path / "b.pt", RECIPE.changed(seed=4)))


def test_held_out_images_are_measured_and_change_nothing(tmp_path: Path) -> None:
    records: list[EpochRecord] = []
    measured = trained(tmp_path / "a.pt", validation=images(1), report=records.append)
    assert same(measured, trained(tmp_path / "b.pt"))
    assert [record.epoch for record in records] == [1, 2]
    assert records == measured.history
    assert records[-1].score == accuracy(measured.model, Loader(images(1), CARD, 70))
    assert trained(tmp_path / "a.pt").history == records  # from the checkpoint
    assert measured.seconds == pytest.approx(sum(record.seconds for record in records))


def test_checkpoints_of_the_first_format_are_understood(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        trained(tmp_path / "c.pt", progress=Watch(steps=STEPS + 1))
    state = checkpoint.read(tmp_path / "c.pt")
    assert state is not None
    old = {"epochs": 2, "batch": 16, "peak_lr": 0.2, "momentum": 0.9, "weight_decay": 5e-4}
    old |= {"warm_up": 0.2, "pad": 2, "seed": 3}
    first = {"recipe": old, "schedule": {"last_epoch": 4}, **{k: state[k] for k in ("model", "optimiser", "epoch")}}
    torch.save(first, tmp_path / "old.pt")
    resumed, whole = trained(tmp_path / "old.pt"), trained(tmp_path / "whole.pt")
    pairs = zip(resumed.model.state_dict().values(), whole.model.state_dict().values(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    assert resumed.seconds is None  # it does not say how long the first epoch took


# -- the right thing ---------------------------------------------------------------------------------------------


def test_every_step_has_its_learning_rate(tmp_path: Path) -> None:
    """One weight, no momentum: what a step changes it by is the rate times the gradient."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Tensor) -> Tensor:  # two logits that differ by the weight
            return torch.stack([self.weight.expand(len(x)), torch.zeros(len(x), dtype=torch.float64)], 1)

    path = [0.0]
    data = Data(name="ones", images=torch.zeros(64, 1, 2, 2), labels=torch.zeros(64, dtype=torch.int64))
    recipe = RECIPE.changed(epochs=3, momentum=0.0, nesterov=False, weight_decay=0.0, lr=0.7, augment=[])
    watch = Watch(lambda: path.append(weight.item()))
    done = train(Line(), data, Card(name="line"), recipe, tmp_path / "c.pt", progress=watch)
    gradients = [-1 / (1 + torch.tensor(w, dtype=torch.float64).exp().item()) for w in path[:-1]]
    found = [(w - after) / g for w, after, g in zip(path, path[1:], gradients, strict=False)]
    assert found == pytest.approx([recipe.learning_rate(step, 12) for step in range(12)])
    assert done.history[-1].lr == recipe.learning_rate(11, 12)


def test_averaged_weights_are_the_exponential_mean(tmp_path: Path) -> None:
    model, path = network(), []
    recipe = RECIPE.changed(ema=0.8)
    watch = Watch(lambda: path.append({k: v.double().clone() for k, v in model.state_dict().items()}))
    done = train(model, images(), CARD, recipe, tmp_path / "c.pt", progress=watch, validation=images(1))
    assert done.history[-1].score == accuracy(model, Loader(images(1), CARD, 70))
    for key, value in model.state_dict().items():
        if not value.is_floating_point():
            continue
        mean = path[0][key]  # it starts from the initial weights
        for state in path[1:]:
            mean = 0.8 * mean + 0.2 * state[key]
        assert torch.allclose(value.double(), mean, rtol=1e-5, atol=1e-6), key
    assert not torch.allclose(model.state_dict()["6.weight"].double(), path[-1]["6.weight"], rtol=1e-3)


def test_label_smoothing_and_clipping_take_part(tmp_path: Path) -> None:
    plain = trained(tmp_path / "a.pt")
    assert not same(plain, trained(tmp_path / "b.pt", RECIPE.changed(label_smoothing=0.1)))
    model, sizes = network(), []
    recipe = RECIPE.changed(clip=1e-3, momentum=0.0, nesterov=False, weight_decay=0.0)
    before = [p.detach().clone() for p in model.parameters()]

    def moved() -> None:
        pairs = zip(model.parameters(), before, strict=True)
        sizes.append(sum(float((p.detach() - b).square().sum()) for p, b in pairs) ** 0.5)
        before[:] = [p.detach().clone() for p in model.parameters()]

    train(model, images(), CARD, recipe, tmp_path / "c.pt", progress=Watch(moved))
    # a step is the rate times a gradient whose norm is at most 0.001, and larger without the limit
    # (the last step is so small that it is lost in the weights' rounding)
    assert sizes[:7] == pytest.approx([1e-3 * recipe.learning_rate(step, 8) for step in range(7)], rel=0.02)


def test_bfloat16_is_used_only_by_the_network(tmp_path: Path) -> None:
    """Weights and loss stay float32. Checkpoints from before there was a choice resume."""
    seen: list[torch.dtype] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.inner(x)
            seen.append(outputs.dtype)
            return outputs

    plain = trained(tmp_path / "plain")
    torch.manual_seed(0)
    other = train(Watched(), images(), CARD, RECIPE.changed(precision="bfloat16"), tmp_path / "half")
    assert seen[0] == torch.float32 and set(seen[1:]) == {torch.bfloat16}  # the first is tried before any training
    assert all(p.dtype == torch.float32 for p in other.model.parameters())
    losses = [run.history[0].loss for run in (plain, other)]
    assert losses[0] == pytest.approx(losses[1], rel=0.1) and losses[0] != losses[1]
    state = torch.load(tmp_path / "plain", weights_only=True)
    del state["recipe"]["precision"]
    checkpoint.write(tmp_path / "plain", state)
    assert same(trained(tmp_path / "plain"), plain)


def test_a_network_learns_the_embedded_images(tmp_path: Path) -> None:
    _, card = build_model("resnet20")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    recipe = QUICK.changed(epochs=12, batch=64, lr=0.1)
    train(model, load_data("demo", "train"), card, recipe, tmp_path / "c.pt")
    assert accuracy(model, Loader(load_data("demo", "test"), card, 500)) > 0.33  # a tenth would be chance


# -- what cannot be ----------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_it_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    recipe = RECIPE.changed(lr=1e30, schedule="cosine")
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) in epoch 1, step [234] of 4: lower the learning"):
        trained(tmp_path / "c.pt", recipe, every=0)
    assert checkpoint.read(tmp_path / "c.pt") is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"recipe": RECIPE.changed(epochs=5)}, r"different recipe \(epochs 2, not 5\)"),
        ({"recipe": RECIPE.changed(augment=["flip"])}, r"\(augment reflect-crop flip, not flip\)"),
        ({"model": network(5)}, "different network"),
        ({"data": images(1)}, "different images"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = tmp_path / "c.pt"
    trained(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=rf"c\.pt belongs to {reason}.*: delete it|{reason}.*delete it"):
        train(**{"model": network(), "data": images(), "card": CARD, "recipe": RECIPE, "checkpoint": path, **change})
    assert path.read_bytes() == before


class Hostile:
    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b"nonsense"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"junk"),
        lambda path: path.write_bytes(path.read_bytes()[:-300]),
        lambda path: torch.save(Hostile(), path),
        lambda path: torch.save({"model": {}}, path),
        lambda path: torch.save([1], path),
    ],
)
def test_other_files_are_refused_as_checkpoints_and_not_run(
    tmp_path: Path, write: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.pt"
    trained(path)
    write(path)
    with pytest.raises(FileError, match=r"c\.pt is not a .*checkpoint.*: delete it"):
        trained(path)
    assert capsys.readouterr().out == ""


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="c.pt cannot be written"):
        trained(tmp_path / "none" / "c.pt")


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("model", "data", "card", "reason"),
    [
        (network(3), images(), CARD, "random has a label 3, but small has 3 classes"),
        (network(), images(labels=False), CARD, "random has no labels"),
        (network(), Data(name="few", images=torch.zeros(3, 3, 8, 8), labels=torch.zeros(3).long()), CARD, "a batch of"),
        (network(), images(), Card(name="grey", mean=(0.5,), std=(0.5,)), "3 channels, but grey takes 1"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, 4)), images(), CARD, "small cannot take images of 3×8×8"),
        (nn.Sequential(nn.Conv2d(3, 4, 3)), images(), CARD, "a tensor of 4 dimensions"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), Twice()), images(), CARD, "small gives tuple"),
        (nn.Flatten(), images(), CARD, "small has no parameters to train"),
        (network(), images(), Card(name="tiny", size=(2, 2)), "3×2×2"),
    ],
)
def test_lack_of_memory_is_reported_before_the_first_step(
    tmp_path: Path, model: nn.Module, data: Data, card: Card, reason: str
) -> None:
    with pytest.raises(SpikecalError, match=reason) as raised:
        train(model, data, card, RECIPE, tmp_path / "c.pt")
    assert isinstance(raised.value, ConfigError | DataError) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_network_of_one_size_is_not_trained_on_smaller_images(tmp_path: Path) -> None:
    fixed = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ConfigError, match="small cannot take images of 3×4×4"):
        train(fixed, images(), CARD, RECIPE.changed(scales=[0.5, 1.0]), tmp_path / "c.pt")
