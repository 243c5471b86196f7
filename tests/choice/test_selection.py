"""AUTO: what it tries, that it keeps LCP unless another pipeline is better beyond chance, and that it resumes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import images, residual
from torch import Tensor

import spikecal
from spikecal import AUTO, LCP, ConfigError, Pipeline, TemporalBias
from spikecal.analysis.timing import timing
from spikecal.choice import selection
from spikecal.choice.candidates import Candidate
from spikecal.choice.heldout import HELD_OUT, HeldOut, Network
from spikecal.choice.placement import Placement, Trial
from spikecal.choice.selection import Chooser, Selection, Tried, rival_of
from spikecal.data.prepare import prepare
from spikecal.data.sources import load_data
from spikecal.graph.stages import partition
from spikecal.pipeline import Auto, resolve_plan
from spikecal.zoo.models import load_model

FEW = Auto(images=24)


def converted(**settings: Any) -> spikecal.Result:
    return spikecal.convert(**{"model": residual(), "images": images(48), "T": 4, "pipeline": FEW, **settings})


def test_it_is_the_default_and_chooses_per_T() -> None:
    result = spikecal.convert(residual(), images(48), T=[2, 4])
    assert set(result.origin.choices) == {2, 4} == set(result.pipelines)
    for T, found in result.origin.choices.items():
        names = [one["name"] for one in found["tried"]]
        assert names[0] == "LCP" and len(set(names)) == len(names) > 2 and found["kept"] in names
        assert found["effort"] == "normal" and found["images"] == 12
        kept = next(one for one in found["tried"] if one["name"] == found["kept"])
        assert kept["pipeline"] == result.pipelines[T].to_dict()


def test_a_real_network_gains_over_lcp_and_refits_on_all_images() -> None:
    model, card = load_model("resnet20")
    seen, test = (prepare(load_data("demo", s).images[:n], card, "resnet20") for s, n in (("train", 96), ("test", 200)))
    chosen = spikecal.convert(model, seen, T=4, effort="low")
    found = chosen.origin.choices[4]
    assert found["kept"] != "LCP" and found["why"].startswith(f"{found['kept']}: diverges by")
    again = spikecal.convert(model, seen, T=4, pipeline=chosen.pipeline).snn
    assert torch.equal(chosen.snn(test[:20]), again(test[:20]))  # the same as by that pipeline on all images
    lcp = spikecal.convert(model, seen, T=4, pipeline=LCP).snn
    agreement = [float((snn(test).argmax(1) == model(test).argmax(1)).float().mean()) for snn in (chosen.snn, lcp)]
    assert agreement[0] > agreement[1] + 0.03


class Scripted(HeldOut):
    """Divergences as a test wants them."""

    found: dict[str, Tensor]

    def measured(self, made: Network, look: Any = None) -> Any:
        return self.found[made.key.rpartition("/")[2]], {}


def chosen(monkeypatch: pytest.MonkeyPatch, **others: list[float]) -> Selection:
    """What is kept where LCP diverges by 1, 2, 3, 4 on four images and other pipelines by so much."""
    lcp = torch.tensor([1.0, 2.0, 3.0, 4.0])
    Scripted.found = {"LCP": lcp, **{name: torch.tensor(values) for name, values in others.items()}}
    monkeypatch.setattr(selection, "candidates", lambda auto: [Candidate(name, LCP) for name in others])
    monkeypatch.setattr("spikecal.conversion.HeldOut", Scripted)
    found: list[Selection] = []
    run = Chooser.run

    def spied(self: Chooser, *arguments: Any) -> Any:
        found.append((result := run(self, *arguments))[0])
        return result

    monkeypatch.setattr(Chooser, "run", spied)
    converted()
    return found[0]


def test_lcp_stays_unless_another_one_is_better_by_a_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # better by 0.25 on average, ± 0.25 exactly: not beyond one standard error
    kept = chosen(monkeypatch, lucky=[0.0, 2.0, 3.0, 4.0]).kept
    assert kept.name == "LCP" and kept.gain == 0


def test_of_those_that_are_better_the_nearest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chosen(monkeypatch, good=[0.5, 1.5, 2.5, 3.6], better=[0.4, 1.4, 2.4, 3.3], noisy=[0.0, 0.0, 0.0, 4.0])
    noisy = found.tried[3]
    assert noisy.divergence == 1.0 and noisy.better  # 1.5 ± 0.6
    assert found.kept is noisy
    assert found.tried[1].gain == pytest.approx(0.475) and found.tried[1].error == pytest.approx(0.025)


def test_what_waits_is_compared_with_what_does_not() -> None:
    none, more = Trial("no waits", 4, 4, {}, 3.0), Trial("no waits", 8, 8, {}, 2.0)
    waiting = Trial("evenly", 4, 8, {"a": 1}, 1.0, 2.0, 0.1)
    assert rival_of(Placement(waiting, (none, waiting, more), 4)) is more
    assert rival_of(Placement(more, (none, waiting, more), 4)) is None


def test_waits_stay_only_if_the_chosen_pipeline_gains_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """LCP gains from waits; the pipeline chosen afterwards must gain, too."""
    late, at_once = [1.0, 1.1, 1.2, 1.3], [1.02, 1.05, 1.3, 1.2]

    def measured(self: HeldOut, made: Network, look: Any = None) -> Any:
        values = [5.0, 6.0, 7.0, 8.0] if made.pipeline == FEW.fixed and not made.waits else [3.0] * 4
        values = values if made.pipeline == FEW.fixed else late if made.waits else at_once
        return torch.tensor(values), dict.fromkeys((s.name for s in partition(self.context.ann) if s.spiking), 1.0)

    good = Candidate("good", Pipeline(sweeps=((TemporalBias(images=24),),)))
    monkeypatch.setattr(selection, "candidates", lambda auto: [good])
    monkeypatch.setattr(HeldOut, "measured", measured)
    result = converted(latency=7)
    assert not result.snn.waits and result.origin.placements[4]["overruled"] == "good"
    assert "not the chosen pipeline" in timing(result.snn).search.why()  # type: ignore[union-attr]
    at_once[:] = [2.0, 2.1, 2.2, 2.3]
    result = converted(latency=7)
    assert result.snn.waits and "overruled" not in result.origin.placements[4]
    assert "waits kept" in timing(result.snn).search.why()  # type: ignore[union-attr]


def test_files_have_no_nan(tmp_path: Path) -> None:
    spikecal.convert(residual(), images(5), T=2, latency=4).save(tmp_path / "n.snn")
    assert b"NaN" not in (tmp_path / "n.snn").read_bytes()
    assert spikecal.inspect(tmp_path / "n.snn")["choices"]["2"]["tried"][0]["divergence"] is None


@pytest.mark.parametrize("wrong", [{"images": 0}, {"images": "x"}, {"potentials": "layer"}, {"effort": ["low"]}])
def test_settings_are_checked_on_construction(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Auto(**wrong)


def test_with_a_latency_it_places_waits_too() -> None:
    result = converted(latency=7)
    assert 4 in result.origin.placements and 4 in result.origin.choices
    kept, tried = result.snn.latency, result.origin.choices[4]["tried"]
    assert kept <= 7 and all(one["latency"] <= 7 for one in tried)
    assert {one["latency"] for one in tried} == {kept} or not result.snn.waits or tried[-1]["waits"] == {}


@pytest.mark.parametrize("effort", ["low", "normal", "high"])
def test_an_effort_costs_no_more_than_it_says(effort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own estimate, trials and the dearest refit together, with thresholds."""
    plans: dict[int, list[Candidate]] = {}
    whole, trial = Chooser._cost, HeldOut.passes

    class Stop(Exception):
        pass

    def spied(self: Chooser, T: int) -> list[Candidate]:
        plans[T] = plan(self, T)
        images = len(self._held.context.images)
        lcp = whole(self, plans[T][0], T) + images
        spent = images + sum(trial(self._held, c.pipeline, T) for c in plans[T])
        spent += max(whole(self, c, T) for c in plans[T])
        assert spent <= 1.5 * AUTO_TIMES[effort] * lcp
        raise Stop

    plan = Chooser.plan
    monkeypatch.setattr(Chooser, "plan", spied)
    for T, count in ((2, 1024), (8, 1024), (32, 1024), (4, 128)):
        with pytest.raises(Stop):
            spikecal.convert(residual(), images(count, size=4), T=T, effort=effort)
        assert len(plans[T]) > 1
    tuned = any("fine-tuned" in c.name for found in plans.values() for c in found)
    assert tuned == (effort == "high")


AUTO_TIMES = {"low": 5, "normal": 20, "high": 300}


def test_held_out_images_are_a_seeded_quarter_at_most_256() -> None:
    assert HELD_OUT == 256
    assert converted().origin.choices[4]["images"] == 6  # of 24 that are used
    assert spikecal.convert(residual(), images(5), T=2).origin.choices[2]["kept"] == "LCP"  # one image is too few


def test_two_runs_give_the_same_bytes_and_files_say_what_was_tried(tmp_path: Path) -> None:
    for name in ("a.snn", "b.snn"):
        converted().save(tmp_path / name)
    assert (tmp_path / "a.snn").read_bytes() == (tmp_path / "b.snn").read_bytes()
    told = spikecal.load(tmp_path / "a.snn").origin
    assert told.choices == converted().origin.choices
    assert told.pipelines[4] == converted().pipeline.to_dict()


def test_a_conversion_resumes_inside_the_choice(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    class Stopping:
        left = 4

        def phase(self, name: str, total: int, seconds: float | None) -> None: ...

        def advance(self, note: str = "") -> None:
            self.left -= note.startswith("divergence")
            if not self.left:
                raise Enough

    plain = converted()
    with pytest.raises(Enough):
        converted(workdir=tmp_path, progress=Stopping())
    done = sorted(path.parent.name for path in tmp_path.rglob("found.step"))
    assert len(done) == 4 and "LCP" in done
    resumed = converted(workdir=tmp_path)
    assert torch.equal(resumed.snn(images(4)), plain.snn(images(4)))
    assert resumed.origin.choices == plain.origin.choices


def test_names_and_efforts_that_are_not_there_are_refused() -> None:
    assert resolve_plan("Auto") is AUTO and resolve_plan("LCP") is LCP
    with pytest.raises(ConfigError, match="'autos': choose from auto, maxact"):
        resolve_plan("autos")
    with pytest.raises(ConfigError, match="effort must be one of low, normal, high, not 'max'"):
        spikecal.convert(residual(), images(4), T=2, effort="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="this pipeline is fixed"):
        spikecal.convert(residual(), images(4), T=2, pipeline="lcp", effort="low")


def test_why_is_a_sentence() -> None:
    kept = Tried("temporal bias", 4, 4, {}, 0.25, 0.5, 0.04, pipeline=Pipeline(sweeps=((TemporalBias(),),)))
    lcp = Tried("LCP", 4, 4, {}, 0.75)
    assert Selection(kept, (lcp, kept), 256, "normal").why == (
        "temporal bias: diverges by 0.25 from the ANN on 256 held-out images, 0.5 ± 0.04 less than LCP"
    )
    assert "no other pipeline" in Selection(lcp, (lcp, kept), 256, "low").why
    assert "too few images" in Selection(lcp, (lcp,), 1, "low").why
