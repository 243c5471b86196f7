"""Distilled images: their statistics, the seed that decides every bit, and notes if statistics are missing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import dyadic, residual
from PIL import Image
from torch import Tensor, nn

import spikecal
from spikecal import ConfigError, Distilled, Inversion
from spikecal.data.card import Card
from spikecal.data.prepare import prepare
from spikecal.data.sets.demo import load_demo
from spikecal.data.sources import load_data
from spikecal.distillation.distill import _batch, _labels, _parts
from spikecal.distillation.inversion import _loss, bounds, mixed, moved, noise, total_variation
from spikecal.distillation.sheet import draw_sheet
from spikecal.distillation.teacher import Teacher, divergence
from spikecal.zoo.models import load_model

CARD = Card(name="small", size=(12, 12), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))
FEW = Inversion(iterations=4)


class Frozen(nn.Module):
    """Batch normalisation that cannot be trained, as detectors have it: buffers and a forward of its own."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = (getattr(self, name).view(1, -1, 1, 1) for name in ("running_mean", "running_var"))
        normal: Tensor = (x - mean) / (var + 1e-5).sqrt()
        return normal


def entering(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of what enters `residual`'s BN, computed by hand."""
    with torch.no_grad():
        values = model.stem(images)  # type: ignore[operator]
    return values.mean((0, 2, 3)), values.var((0, 2, 3), correction=0)


@pytest.fixture(scope="module")
def embedded() -> Distilled:
    model, card = load_model("resnet20")
    return spikecal.distill(model, 32, card=card, iterations=12, inversion=Inversion(lr=0.2))


# -- the loss --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 7), (3, 5, 4, 6)])
def test_the_divergence_and_its_gradient_are_those_of_the_formula(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5).double()
    norm.running_mean, norm.running_var = torch.randn(5).double(), torch.rand(5).double() + 0.5
    value = (2 * torch.randn(shape) + 1).double().requires_grad_(True)
    dims = [dim for dim in range(value.ndim) if dim != 1]
    m, v = value.mean(dims), value.var(dims, correction=0) + norm.eps
    remembered = torch.distributions.Normal(norm.running_mean, (norm.running_var + norm.eps).sqrt())
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(m, v.sqrt()), remembered).mean()
    found = divergence(value, norm)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    wanted, got = (torch.autograd.grad(loss, value)[0] for loss in (expected, found))
    assert torch.allclose(wanted, got, rtol=1e-8, atol=1e-12)


def test_statistics_move_towards_what_bn_remembers() -> None:
    model = residual()
    made = spikecal.distill(model, 48, card=CARD, iterations=60, inversion=Inversion(lr=0.2, jitter=0.0, variation=0.0))
    remembered_mean, remembered_var = model.bn.running_mean, model.bn.running_var
    assert isinstance(remembered_mean, Tensor) and isinstance(remembered_var, Tensor)
    start = noise((48, 3, 12, 12), "pink", torch.Generator().manual_seed(3))

    def distance(images: Tensor) -> float:
        mean, var = entering(model, images)
        return float((mean - remembered_mean).abs().mean() + (var - remembered_var).abs().mean())

    assert distance(made.inputs()) < 0.35 * distance(start)  # after rounding to bytes, too
    (losses,) = made.losses
    assert losses.start is not None and losses.statistics is not None
    assert losses.statistics < 0.3 * losses.start


def test_real_and_distilled_images_are_nearer_than_noise(embedded: Distilled) -> None:
    """On the embedded network, whose training data is known: the loss distinguishes images from noise."""
    model, card = load_model("resnet20")
    teacher = Teacher("resnet20", model, card)
    real = load_demo("train")[0][:32].float() / 255
    white = (noise((32, 3, 32, 32), "white", torch.Generator().manual_seed(0)) / 4 + 0.5).clamp(0, 1)
    found = [float(teacher.divergence(x)[0]) for x in (embedded.images.float() / 255, real, white)]
    assert found[0] < found[2] / 2 and found[1] < found[2] / 2


def test_priors_and_augmentation() -> None:
    x = torch.arange(12.0).view(1, 1, 3, 4)
    assert float(total_variation(x)) == 16 + 1
    assert torch.equal(moved(x, Inversion(jitter=0.0, flip=False), torch.Generator()), x)
    generator = torch.Generator().manual_seed(0)
    seen = [moved(x, Inversion(jitter=0.5), generator) for _ in range(20)]
    assert all(torch.equal(s.flatten().sort().values, x.flatten()) for s in seen)  # pixels move, none is lost
    assert len({tuple(s.flatten().tolist()) for s in seen}) > 5
    images = torch.stack([torch.full((3, 10, 10), float(i)) for i in range(4)])
    result, others, share = mixed(images, torch.Generator().manual_seed(1))
    for i, (image, other) in enumerate(zip(result, others.tolist(), strict=True)):
        assert other != i
        assert float((image - other).abs().lt(1e-4).double().mean()) == pytest.approx(share)
        assert float((image - i).abs().lt(1e-4).double().mean()) == pytest.approx(1 - share)


ALONE = {"statistics": 0.0, "labels": 0.0, "variation": 0.0, "energy": 0.0, "jitter": 0.0, "flip": False}


def loss_of(teachers: list[Teacher], images: Tensor, targets: Tensor | None = None, **settings: Any) -> float:
    """The loss with these settings and nothing else in it."""
    mean, std, generator = torch.zeros(3, 1, 1), torch.ones(3, 1, 1), torch.Generator().manual_seed(5)
    return float(_loss(teachers, images, mean, std, targets, Inversion(**{**ALONE, **settings}), generator))


def probed(*models: nn.Module) -> list[Teacher]:
    teachers = [Teacher("small", model, Card(name="small", size=(12, 12))) for model in models]
    for teacher in teachers:
        teacher.probe((3, 12, 12))
    return teachers


def test_every_part_is_in_the_loss() -> None:
    torch.manual_seed(0)
    images, labels, (teacher,) = torch.randn(8, 3, 12, 12), torch.arange(8) % 5, probed(residual())
    statistics, logits = teacher.divergence(images)
    assert logits is not None
    assert loss_of([teacher], images, variation=2.0) == pytest.approx(2 * float(total_variation(images)))
    assert loss_of([teacher], images, energy=3.0) == pytest.approx(3 * float(images.square().mean()))
    assert loss_of([teacher], images, statistics=2.0) == pytest.approx(2 * float(statistics))
    wanted = float(nn.functional.cross_entropy(logits, labels))
    assert loss_of([teacher], images, labels, labels=4.0) == pytest.approx(4 * wanted)


def test_the_network_sees_images_that_are_moved_and_mixed() -> None:
    torch.manual_seed(0)
    images, labels, (teacher,) = torch.randn(8, 3, 12, 12), torch.arange(8) % 5, probed(residual())
    settings: dict[str, Any] = {"statistics": 1.0, "labels": 1.0, "jitter": 0.5, "flip": True, "mix": 1.0}
    generator = torch.Generator().manual_seed(5)
    torch.rand((), generator=generator)  # whether to mix
    seen, others, share = mixed(images, generator)
    statistics, logits = teacher.divergence(moved(seen, Inversion(**{**ALONE, **settings}), generator))
    assert logits is not None and 0 < share < 1
    entropy = [float(nn.functional.cross_entropy(logits, of)) for of in (labels, labels[others])]
    expected = float(statistics) + (1 - share) * entropy[0] + share * entropy[1]
    assert loss_of([teacher], images, labels, **settings) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(float(teacher.divergence(images)[0]) + entropy[0], rel=1e-3)


def test_an_unsure_network_does_not_weaken_the_others() -> None:
    torch.manual_seed(0)
    images, plain = torch.randn(8, 3, 12, 12), residual(1)
    plain.bn = nn.Identity()  # type: ignore[assignment]
    teachers = probed(residual(), plain)
    assert loss_of(teachers, images, statistics=1.0) == pytest.approx(loss_of(teachers[:1], images, statistics=1.0))


def test_pink_noise_has_the_spectrum_of_photographs() -> None:
    power = {}
    for start in ("pink", "white"):
        images = noise((64, 3, 32, 32), start, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        assert float(images.mean()) == pytest.approx(0, abs=0.02)
        assert float(images.std()) == pytest.approx(1, abs=0.02)
        spectrum = torch.fft.rfft2(images).abs().square().mean((0, 1))
        power[start] = float(spectrum[0, 2] / spectrum[0, 8])
    assert power["pink"] == pytest.approx(16, rel=0.35)  # (8 / 2)²
    assert power["white"] == pytest.approx(1, rel=0.35)
    correlation = torch.corrcoef(noise((64, 3, 32, 32), "pink", torch.Generator()).transpose(0, 1).flatten(1))
    assert float(correlation[0, 1]) > 0.7


# -- the same bits ---------------------------------------------------------------------------------------------


def test_the_seed_decides_every_bit() -> None:
    runs = [spikecal.distill(residual(), 20, card=CARD, inversion=FEW, batch=10, seed=s) for s in (0, 0, 1)]
    assert torch.equal(runs[0].images, runs[1].images) and runs[0].losses == runs[1].losses
    assert not torch.equal(runs[0].images, runs[2].images)
    assert runs[0].images.shape == (20, 3, 12, 12) and runs[0].images.dtype == torch.uint8
    assert len(runs[0].images.unique(dim=0)) == 20
    assert len(runs[0].losses) == 2


def test_classes_are_spread() -> None:
    made = spikecal.distill(residual(), 40, card=CARD, inversion=FEW, batch=20)
    assert made.labels is not None and made.labels.bincount().tolist() == [8] * 5
    assert made.labels.tolist() != sorted(made.labels.tolist())
    few = [_labels(16, 1000, seed) for seed in (0, 1)]  # of more classes than images, some by chance
    assert all(of is not None and len(of.unique()) == 16 and int(of.max()) > 200 for of in few)
    assert few[0] is not None and few[1] is not None and few[0].tolist() != few[1].tolist()


def test_the_model_is_left_as_it_is() -> None:
    model = residual().train().requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():  # the caller's use of gradients does not matter
        spikecal.distill(model, 16, card=CARD, inversion=FEW)
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.bn._forward_pre_hooks


def test_batches_are_even_and_bounded() -> None:
    assert _parts(1024, 128) == [128] * 8
    assert _parts(100, 128) == [100]
    assert _parts(10, 4) == [4, 3, 3]
    assert _batch(None, 1000, 2**40) == 128
    assert _batch(None, 2**25, 2**40) == 64  # two gigabytes for the gradient
    with pytest.raises(ConfigError, match="images at a time need about .* GB, but there are .* GB: give more memory"):
        _batch(None, 2**30, 2**33)


def test_a_single_image_is_one_of_several() -> None:
    """Statistics of one image mean little: more are made, and one is kept."""
    model, seen = residual(), []
    model.stem.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    one = spikecal.distill(model, 1, card=CARD, inversion=FEW)
    assert seen[-1] == 16
    assert one.images.shape == (1, 3, 12, 12) and one.labels is not None and one.labels.shape == (1,)


# -- kinds of networks -----------------------------------------------------------------------------------------


def test_frozen_and_half_precision_norms_count() -> None:
    plain, frozen = residual(), residual()
    frozen.bn = Frozen(frozen.bn)  # type: ignore[assignment]
    plain.bn.weight, plain.bn.bias = None, None
    made = [spikecal.distill(model, 16, card=CARD, inversion=FEW) for model in (plain, frozen)]
    assert made[0].losses[0].statistics == pytest.approx(made[1].losses[0].statistics, rel=0.02)
    half = spikecal.distill(residual().half(), 16, card=CARD, inversion=FEW)
    assert half.losses[0].statistics is not None


class Calls(nn.Module):
    """`residual`, whose BN is called in a way of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.how, self.bn = residual(), how, nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "named":
            x = self.bn(input=x)
        elif self.how == "functional":
            x = nn.functional.batch_norm(x, self.bn.running_mean, self.bn.running_var)
        elif self.how == "cut":
            x = x.detach()
        answer: Tensor = self.body(x)
        return answer


def test_norms_count_if_they_are_called() -> None:
    card = Card(name="small", size=(12, 12))
    counts = {how: len(_probe(Calls(how), card).norms) for how in ("named", "functional", "unused")}
    assert counts == {"named": 2, "functional": 1, "unused": 1}
    lonely = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    lonely.forgotten = nn.BatchNorm2d(4)
    lonely.forward = lambda x: nn.Sequential.forward(nn.Sequential(*list(lonely)[:4]), x)  # type: ignore[method-assign]
    made = spikecal.distill(lonely, 16, 8, inversion=FEW)
    assert made.losses[0].statistics is None and any("not called as a module" in note for note in made.notes)
    with pytest.raises(ConfigError, match="cuts off gradients"):
        spikecal.distill(Calls("cut"), 16, card=card, inversion=FEW)


def _probe(model: nn.Module, card: Card) -> Teacher:
    teacher = Teacher("calls", model, card)
    teacher.probe((3, 12, 12))
    return teacher


def test_networks_of_another_precision_see_the_same_images() -> None:
    made = [spikecal.distill([residual(), other], 16, card=[CARD, CARD], inversion=FEW)
            for other in (residual(1), residual(1).double())]  # fmt: skip
    assert torch.equal(made[0].images, made[1].images)


def test_several_networks_are_all_matched() -> None:
    """Images from two networks suit both; those from one suit the other less."""
    first, second = residual(0), residual(1)
    second.bn.running_mean.add_(0.5)  # type: ignore[union-attr]
    settings = Inversion(iterations=40, lr=0.2, labels=0.0)
    alone = spikecal.distill(first, 32, card=CARD, inversion=settings)
    both = spikecal.distill([first, second], 32, card=[CARD, CARD], inversion=settings)
    teacher = Teacher("second", second, CARD)
    found = [float(teacher.divergence(made.images.float() / 255)[0]) for made in (alone, both)]
    assert found[1] < 0.6 * found[0]


def test_networks_of_other_sizes_and_normalisations_see_the_same_images() -> None:
    model, seen = residual(), []
    other = Card(name="large", size=(24, 24), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop=0.5)
    watched = residual(1)
    watched.stem.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = spikecal.distill([model, watched], 16, card=[CARD, other], inversion=FEW).images
    last: Tensor = seen[-1]
    assert last.shape == (16, 3, 24, 24)
    expected = torch.nn.functional.interpolate(images.float() / 255, (24, 24), mode="bilinear")
    assert 0 <= float(last.min()) and float(last.max()) <= 1
    assert float((last - expected).abs().mean()) < 0.01  # in 0..1, the whole image; rolls and flips are over


def test_without_bn_classes_are_aimed_at_and_a_note_says_so() -> None:
    made = spikecal.distill(dyadic(), 24, (8, 8), inversion=Inversion(iterations=60, lr=0.3, labels=1.0))
    assert made.losses[0].statistics is None and made.losses[0].right is not None
    assert made.losses[0].right > 0.6  # of four classes
    assert any("has no BN, or BN that is folded" in note for note in made.notes)
    assert made.images.dtype == torch.float32 and made.images.shape == (24, 2, 8, 8)
    assert any("in its own units" in note for note in made.notes)
    assert torch.equal(made.inputs(), made.images)


def test_without_anything_to_match_it_is_noise() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    made = spikecal.distill(body, 16, 8, inversion=FEW)
    assert made.labels is None and any("pink noise" in note for note in made.notes)
    assert float(made.images.std()) == pytest.approx(1, abs=0.2)
    spikecal.convert(body, made.inputs(), T=2)


def test_other_outputs_are_matched_by_statistics_alone() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    made = spikecal.distill(body, 16, 8, inversion=FEW)
    assert made.labels is None and made.losses[0].statistics is not None
    assert any("statistics are matched" in note for note in made.notes)


def test_images_of_the_embedded_network_calibrate_it_better_than_noise(embedded: Distilled) -> None:
    """The whole purpose in miniature."""
    model, card = load_model("resnet20")
    images, labels = load_demo("train")
    real = prepare(images[:100], card, "")
    white = noise((32, 3, 32, 32), "white", torch.Generator().manual_seed(0))
    limits = bounds(Teacher("resnet20", model, card), white)
    assert limits is not None
    right = []
    for calibration in (embedded.inputs(), white.clamp(*limits)):
        snn = spikecal.convert(model, calibration, T=4).snn
        right.append(float((snn(real).argmax(1) == labels[:100]).double().mean()))
    assert right[0] > right[1] + 0.1


# -- files -----------------------------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    made = spikecal.distill(residual(), 20, card=CARD, inversion=FEW)
    for name in ("a.npz", "b.npz"):
        made.save(tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    data = load_data(f"npz:{tmp_path / 'a.npz'}", "train")
    assert isinstance(data.images, Tensor) and torch.equal(data.images, made.images)
    assert data.distilled and data.labels is None  # the classes aimed at are no truth to test on
    with np.load(tmp_path / "a.npz") as arrays:
        assert made.labels is not None and arrays["targets"].tolist() == made.labels.tolist()
        assert '"distilled from": ["small"]' in str(arrays["facts"])
    assert made.sheet(tmp_path / "sheet.png") == 20
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = torch.from_numpy(np.asarray(sheet).copy())
    assert torch.equal(pixels[:96:8, 97:193:8].permute(2, 0, 1), made.images[1])  # eight times as large


def test_targets_from_elsewhere_are_not_distilled(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", images=np.zeros((4, 3, 8, 8), dtype=np.uint8), targets=np.arange(4))
    assert not load_data(f"npz:{tmp_path / 'own.npz'}", "train").distilled


def test_images_of_any_number_of_channels_are_read_again(tmp_path: Path) -> None:
    model = dyadic()  # of two channels
    made = spikecal.distill(model, 16, (8, 8), inversion=FEW)
    made.save(tmp_path / "two.npz")
    data = load_data(f"npz:{tmp_path / 'two.npz'}", "train")
    assert isinstance(data.images, Tensor) and torch.equal(data.images, made.images)


def test_sheets_of_large_grey_and_float_images() -> None:
    picture, shown = draw_sheet(torch.zeros((400, 1, 400, 300), dtype=torch.uint8))
    assert shown < 400 and picture.startswith(b"\x89PNG")
    assert draw_sheet(torch.randn(5, 3, 6, 6))[1] == 5
    with pytest.raises(spikecal.DataError, match="2 channels"):
        draw_sheet(torch.zeros(3, 2, 4, 4))


# -- errors ----------------------------------------------------------------------------------------------------


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not today")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"model": []}, "there is no network to distil from"),
        ({"model": "resnet20"}, "torch.nn.Module with Python code"),
        ({"model": [residual(), 3]}, "torch.nn.Module with Python code"),
        ({"n": 0}, "n must be an integer of at least 1, not 0"),
        ({"n": 2.5}, "n must be an integer"),
        ({"n": 10**12}, "1,000,000,000,000 images of shape (3, 12, 12) do not fit into"),
        ({"seed": -1}, "seed must be a non-negative integer"),
        ({"batch": 0}, "batch must be an integer of at least 1"),
        ({"size": None, "card": None}, "does not state the size of its images: give their size"),
        ({"size": (1, 2, 3)}, "size must be a side, or height and width"),
        ({"size": 0}, "size must be a side"),
        ({"size": 1}, "does not take images of shape"),
        ({"card": [CARD, CARD]}, "1 networks but 2 cards"),
        ({"card": "resnet20"}, "card must be a Card"),
        ({"inversion": {}}, "inversion must be a spikecal.Inversion"),
        ({"channels": 1}, "channels is 1, but the card of small says 3"),
        ({"n": 2**40}, "GB: give a smaller n"),
        ({"size": (10**6, 10**6)}, "too large: at most 67,108,864 pixels are allowed"),
        ({"memory": 10**6}, "images at a time need about"),
        (
            {"model": [residual(), residual()], "card": [CARD, Card(name="bare", size=(12, 12))]},
            "bare does not state its",
        ),
        ({"iterations": 0}, "iterations must be a positive integer"),
        ({"model": nn.Linear(4, 2), "card": None, "size": 4}, "give channels"),
        ({"channels": 4, "card": None, "size": 12}, "does not take images of shape (4, 12, 12)"),
        ({"model": nn.Sequential(nn.Conv2d(3, 2, 3), Bad())}, "not today"),
        ({"model": [residual(), nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())]}, "so it adds nothing"),
        ({"model": residual().to("meta")}, "meta device"),
        ({"inversion": Inversion(iterations=30, lr=1e30, statistics=1e30)}, "the loss is not finite"),
    ],
)
def test_bad_calls_are_one_clear_line(arguments: dict[str, Any], reason: str) -> None:
    call = {"model": residual(), "n": 16, "card": CARD, "inversion": FEW, **arguments}
    if isinstance(call["model"], list) and isinstance(call["card"], Card):
        call["card"] = [CARD] * len(call["model"])
    with pytest.raises(ConfigError) as error:
        spikecal.distill(call.pop("model"), call.pop("n"), **call)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_images_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spikecal.distillation.teacher.free_memory", lambda device: 1000)
    with pytest.raises(ConfigError, match="need more memory than is free: give a smaller size"):
        spikecal.distill(residual(), 16, card=CARD, inversion=FEW)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lr": 0}, "lr must be a positive number"),
        ({"mix": 2.0}, "mix must be a share"),
        ({"flip": 1}, "flip must be true or false"),
        ({"labels": -1}, "labels must be a non-negative number"),
        ({"variation": float("nan")}, "variation must be a non-negative number"),
        ({"start": "blue"}, "start must be pink or white"),
    ],
)
def test_bad_settings(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Inversion(**settings)


def test_weights_that_are_not_finite() -> None:
    model = residual()
    model.bn.running_var.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="not finite"):
        spikecal.distill(model, 16, card=CARD, inversion=FEW)
