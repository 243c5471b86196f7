"""Pipelines: the presets are the paper's, and every setting can be changed from Python and from TOML."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from spikecal import (
    ACP,
    BASELINE,
    LCP,
    MAXACT,
    PC,
    PERCENTILE,
    Bias,
    ConfigError,
    Pipeline,
    Potential,
    Weights,
)
from spikecal.calibration.calibrators import Calibrator
from spikecal.calibration.threshold import MMSE, Learned, MaxAct, Percentile
from spikecal.parts import Absent
from spikecal.pipeline import CALIBRATORS, PRESETS, THRESHOLDS, Rounding
from spikecal.rivals.local import LocalBalancing
from spikecal.usercode import is_own

# Written out, not taken from the classes: a default that drifts must not take its test along.
THRESHOLD = {"kind": "mmse", "per": "channel", "images": 1024, "grid": 100}
BIAS = {"kind": "bias", "images": 128}
POTENTIAL = {"kind": "potential", "images": 128, "per": "neuron"}
WEIGHTS = {
    "kind": "weights", "images": 1024, "iterations": 5000, "batch": 32, "lr": 1e-5, "momentum": 0.9, "optimiser": "sgd",
    "held_out": 0.0,
}  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {
    "maxact": {"threshold": {"kind": "maxact", "per": "layer", "images": 1024}, "sweeps": []},
    "percentile": {"threshold": {"kind": "percentile", "per": "layer", "images": 1024, "percent": 99.99}, "sweeps": []},
    "baseline": {"threshold": THRESHOLD, "sweeps": []},
    "lcp": {"threshold": THRESHOLD, "sweeps": [[BIAS]]},
    "pc": {"threshold": THRESHOLD, "sweeps": [[POTENTIAL]]},
    "acp": {"threshold": THRESHOLD, "sweeps": [[POTENTIAL, WEIGHTS]]},
}


def test_presets_are_the_papers() -> None:
    assert PRESETS == {
        "maxact": MAXACT, "percentile": PERCENTILE, "baseline": BASELINE, "lcp": LCP, "pc": PC, "acp": ACP,
    }  # fmt: skip
    assert {name: preset.to_dict() for name, preset in PRESETS.items()} == {
        name: {**settings, "rounding": "bias"} for name, settings in PAPER.items()
    }


@pytest.mark.parametrize(
    ("preset", "images"),
    [(BASELINE, 1024), (LCP, 1024), (ACP, 1024), (ACP.changed(Weights, images=2000), 2000)],
)
def test_enough_images_are_requested_for_the_part_that_needs_most(preset: Pipeline, images: int) -> None:
    assert preset.images == images


def test_thresholds_are_searched_with_what_is_simulated() -> None:
    found = {rounding: Pipeline(rounding=rounding).quantiser for rounding in get_args(Rounding)}
    assert found == {"floor": "floor", "bias": "round", "potential": "round", "split": "round"}


REFERENCE_ORDER = Pipeline(
    threshold=Percentile(per="channel", images=64, percent=99.0),
    rounding="potential",
    sweeps=((Weights(iterations=7, optimiser="adam", lr=1e-3),), (Potential(per="channel", images=9), Bias(images=3))),
)


SPLIT = dataclasses.replace(LCP, rounding="split", kappa=0.25)


@pytest.mark.parametrize("pipeline", [*PRESETS.values(), REFERENCE_ORDER, SPLIT])
def test_round_trip_through_plain_data(pipeline: Pipeline) -> None:
    assert Pipeline.from_dict(pipeline.to_dict()) == pipeline


TOML = """
preset = "acp"
rounding = "floor"
sweeps = [
    [
        {kind = "weights", images = 11, iterations = 12, batch = 13, lr = 0.5, momentum = 0.25, optimiser = "adam", \
held_out = 0.25},
        {kind = "bias", images = 14},
    ],
    [{kind = "potential", images = 15, per = "channel"}],
]

[threshold]
kind = "KIND"
per = "channel"
images = 16
"""
OTHER_THRESHOLDS = {
    "maxact": ("", MaxAct(per="channel", images=16)),
    "percentile": ("percent = 50", Percentile(per="channel", images=16, percent=50)),
    "mmse": ("grid = 17", MMSE(per="channel", images=16, grid=17)),
    "learned": ("grid = 17", Learned(per="channel", images=16, grid=17)),
    "local balancing": ("rate = 0.5\nrounds = 17", LocalBalancing(per="channel", images=16, rate=0.5, rounds=17)),
}


@pytest.mark.parametrize("kind", sorted(THRESHOLDS))
def test_toml_changes_every_field(kind: str, tmp_path: Path) -> None:
    line, threshold = OTHER_THRESHOLDS[kind]
    path = tmp_path / "pipeline.toml"
    path.write_text(TOML.replace("KIND", kind) + line)
    found = Pipeline.from_toml(path)
    weights = Weights(images=11, iterations=12, batch=13, lr=0.5, momentum=0.25, optimiser="adam", held_out=0.25)
    assert found == Pipeline(
        threshold=threshold,
        rounding="floor",
        sweeps=((weights, Bias(images=14)), (Potential(images=15, per="channel"),)),
    )
    for part in (threshold, *found.sweeps[0], *found.sweeps[1]):  # nothing was left at its default
        default = type(part)()
        same = [f.name for f in dataclasses.fields(part) if getattr(part, f.name) == getattr(default, f.name)]
        assert not same


def test_toml_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text('preset = "LCP"\n[threshold]\ngrid = 50\n')
    assert Pipeline.from_toml(path) == dataclasses.replace(LCP, threshold=MMSE(per="channel", grid=50))
    path.write_text('preset = "lcp"\n[threshold]\nkind = "percentile"\n')
    assert Pipeline.from_toml(path) == dataclasses.replace(LCP, threshold=Percentile(per="channel"))
    path.write_text("")
    assert Pipeline.from_toml(path) == BASELINE
    path.write_text('preset = "lcp"\nrounding = "split"\nkappa = 0.25\n')
    assert Pipeline.from_toml(path) == SPLIT
    assert Pipeline(rounding="split") == Pipeline(rounding="split", kappa=0.5)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"treshold": {}}, "treshold"),
        ({"preset": "magic"}, "magic"),
        ({"preset": 3}, "3"),
        ({"rounding": "up"}, "up"),
        ({"rounding": ["bias"]}, "bias"),
        ({"kappa": 0.5}, 'kappa is for rounding="split"'),
        ({"rounding": "floor", "kappa": 0.5}, "kappa"),
        ({"rounding": "split", "kappa": 1.5}, "1.5"),
        ({"rounding": "split", "kappa": -0.1}, "kappa"),
        ({"rounding": "split", "kappa": float("nan")}, "kappa"),
        ({"rounding": "split", "kappa": "half"}, "half"),
        ({"rounding": "split", "kappa": True}, "kappa"),
        ({"threshold": "mmse"}, "mmse"),
        ({"threshold": {"kind": "median"}}, "median"),
        ({"threshold": {"kind": ["mmse"]}}, "mmse"),
        ({"threshold": {"kind": "mmse", "gird": 3}}, "gird"),
        ({"threshold": {"percent": 99}}, "percent"),  # the base has an MMSE
        ({"threshold": {"per": "pixel"}}, "pixel"),
        ({"threshold": {"per": 1}}, "per"),
        ({"threshold": {"images": 0}}, "0"),
        ({"threshold": {"images": 2.5}}, "images"),
        ({"threshold": {"images": True}}, "images"),
        ({"threshold": {"grid": 0}}, "0"),
        ({"threshold": {"kind": "percentile", "percent": 0}}, "0"),
        ({"threshold": {"kind": "percentile", "percent": 101}}, "101"),
        ({"threshold": {"kind": "percentile", "percent": "high"}}, "percent"),
        ({"sweeps": "bias"}, "sweeps"),
        ({"sweeps": [{"kind": "bias"}]}, "sweeps"),
        ({"sweeps": [["bias"]]}, "bias"),
        ({"sweeps": [[{}]]}, "kind|None"),
        ({"sweeps": [[{"kind": "biases"}]]}, "biases"),
        ({"sweeps": [[{"kind": "bias", "per": "channel"}]]}, "per"),
        ({"sweeps": [[{"kind": "bias", "label": "x"}]]}, "label"),
        ({"sweeps": [[{"kind": "bias", "images": 0}]]}, "bias"),
        ({"sweeps": [[{"kind": "potential", "per": "layer"}]]}, "layer"),
        ({"sweeps": [[{"kind": "weights", "iterations": 0}]]}, "iteration"),
        ({"sweeps": [[{"kind": "weights", "batch": 0}]]}, "image"),
        ({"sweeps": [[{"kind": "weights", "lr": 0}]]}, "0"),
        ({"sweeps": [[{"kind": "weights", "lr": float("nan")}]]}, "nan"),
        ({"sweeps": [[{"kind": "weights", "lr": "small"}]]}, "small"),
        ({"sweeps": [[{"kind": "weights", "momentum": -0.5}]]}, "-0.5"),
        ({"sweeps": [[{"kind": "weights", "momentum": 1}]]}, "1"),
        ({"sweeps": [[{"kind": "weights", "optimiser": "lbfgs"}]]}, "lbfgs"),
    ],
)
def test_faults_are_named(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Pipeline.from_dict(settings)


def test_a_faulty_file_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    with pytest.raises(ConfigError, match="pipeline.toml"):
        Pipeline.from_toml(path)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        Pipeline.from_toml(tmp_path)
    for text, word in (("preset = ", "TOML"), ("[threshold]\nkind = 'x'", "'x'")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"pipeline.toml.*{word}"):
            Pipeline.from_toml(path)
    path.write_bytes(b"preset = '\xff'")
    with pytest.raises(ConfigError, match="pipeline.toml"):
        Pipeline.from_toml(path)


def test_every_part_has_a_name_in_files() -> None:
    ours = {cls for cls in Calibrator.__subclasses__() if not is_own(cls) and not issubclass(cls, Absent)}
    assert set(CALIBRATORS.values()) == ours
    assert all(cls.label == name for name, cls in CALIBRATORS.items())
    assert set(THRESHOLDS.values()) == {MaxAct, Percentile, MMSE, Learned, LocalBalancing}


def test_changed_changes_one_kind_everywhere_and_nothing_else() -> None:
    changed = ACP.changed(Weights, iterations=200, optimiser="adam")
    assert changed.sweeps == ((Potential(), Weights(iterations=200, optimiser="adam")),)
    assert (changed.threshold, changed.rounding) == (ACP.threshold, ACP.rounding)
    assert ACP.sweeps == ((Potential(), Weights()),)
    twice = Pipeline(sweeps=((Bias(),), (Weights(),), (Bias(images=5), Potential())))
    assert twice.changed(Bias, images=7).sweeps == ((Bias(images=7),), (Weights(),), (Bias(images=7), Potential()))
    assert LCP.changed(Weights, iterations=3) == LCP
    with pytest.raises(ConfigError, match="-1"):
        ACP.changed(Weights, images=-1)


def test_a_pipeline_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ACP.rounding = "floor"  # type: ignore[misc]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pipeline(sweeps=(Bias(),)),  # type: ignore[arg-type]
        lambda: Pipeline(threshold="mmse"),  # type: ignore[arg-type]
        lambda: Pipeline(threshold=Bias()),  # type: ignore[arg-type]
        lambda: Bias(images=2.5),  # type: ignore[arg-type]
        lambda: Bias(images="a"),  # type: ignore[arg-type]
        lambda: MMSE(grid=1.5),  # type: ignore[arg-type]
        lambda: Weights(batch=True),
        lambda: Weights(lr=float("inf")),
    ],
)
def test_settings_of_a_wrong_kind_are_refused_on_construction(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()
