"""Claims are judged in their direction, by their size, and hold for the paper's own figures."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spikecal.reproduce.claims import Claim, Closed, Column, Gain, Kept, LostByBN, Network, Sooner, Steadier, WithBN
from spikecal.reproduce.paired import packed, unpacked
from spikecal.reproduce.paper import paper_networks, paper_tables
from spikecal.reproduce.said import SAID
from spikecal.reproduce.summary import judge
from spikecal.reproduce.tables import TABLES, find

BY = Gain(text="", row="b", over="a")


def network(
    model: str,
    bn: bool = True,
    ann: float = 90.0,
    std: float = 0.1,
    images: int | None = 1000,
    **rows: float | list[float],
) -> Network:
    """Rows by their means at T = 4, 8, …, over three seeds."""
    columns = {
        row: {4 << i: Column(mean, std, 3, images, ann) for i, mean in enumerate(means)}
        for row, means in ((row, [m] if isinstance(m, int | float) else m) for row, m in rows.items())
    }
    return Network(model, bn, columns)


def verdicts(claim: Claim, *networks: Network) -> dict[str, str]:
    return {", ".join(size.models): claim.verdict(size) for size in claim.sizes(networks)}


def values(claim: Claim, *networks: Network) -> dict[int, float]:
    return {size.T: pytest.approx(size.value) for size in claim.sizes(networks)}


def test_a_gain_has_a_direction_and_a_noise() -> None:
    nets = network("up", a=50, b=70), network("down", a=70, b=50), network("same", a=50, b=50.5)
    assert verdicts(BY, *nets) == {"up": "seen", "down": "not seen", "same": "level"}
    # two shares of 1,000 images are known to 2.2 points; where seeds differ by more, that counts
    close = network("x", a=50, b=52.3), network("y", a=50, b=52.1)
    assert verdicts(BY, *close) == {"x": "seen", "y": "level"}
    assert verdicts(BY, network("x", std=3.0, a=50, b=52.3)) == {"x": "level"}
    # of mAP seeds alone say what is chance
    assert verdicts(BY, network("x", images=None, a=50, b=50.5)) == {"x": "seen"}


def test_the_same_images_are_compared_one_by_one() -> None:
    """Ninety answers are right in both rows and three are gained: pairs see what two shares of 100 images cannot."""
    first, second = packed([1] * 90 + [0] * 10), packed([1] * 93 + [0] * 7)
    assert unpacked(first).mean() == 0.9

    def of(*answers: tuple[str, ...]) -> Network:
        known = zip("ab", (90, 93), answers, strict=True)
        return Network("x", True, {row: {4: Column(mean, None, 1, 100, 99, some)} for row, mean, some in known})

    assert verdicts(BY, of((first,), (second,))) == {"x": "seen"}
    (size,) = BY.sizes([of((first,), (second,))])
    assert size.noise == pytest.approx(100 * math.sqrt(0.03 * 0.97 / 99))
    assert verdicts(BY, of((), ())) == verdicts(BY, of((first,), (packed([1] * 50),))) == {"x": "level"}
    # the mean over seeds counts for each image
    (steadier,) = BY.sizes([of((first, second), (second, first))])
    assert steadier.noise == 0


def test_differences_within_half_a_point_of_the_ann_are_level() -> None:
    near, far = network("near", std=0.0, a=89.6, b=89.9, images=None), network("far", a=89.4, b=89.9, images=None)
    assert verdicts(BY, near, far) == {"near": "seen", "far": "seen"}
    assert verdicts(replace(BY, par=0.5), near, far) == {"near": "level", "far": "seen"}


def test_the_size_counts() -> None:
    nets = network("much", a=50, b=70), network("little", a=50, b=55)
    assert verdicts(Gain(text="", row="b", over="a", least=10), *nets) == {"much": "seen", "little": "not seen"}
    assert verdicts(Gain(text="", row="b", over="a", most=10), *nets) == {"much": "not seen", "little": "seen"}
    assert verdicts(Gain(text="", row="b", over="a", least=6), nets[1]) == {"little": "level"}
    assert verdicts(Gain(text="", row="b", over="a", most=6), nets[1]) == {"little": "level"}


def test_after_how_many_steps() -> None:
    one = network("x", a=[10, 20, 30], b=[15, 27, 39])
    assert values(BY, one) == {4: 5, 8: 7, 16: 9}
    for at, expected in (("fewest", {4: 5}), ("most", {16: 9}), (8, {8: 7}), (32, {})):
        assert values(Gain(text="", row="b", over="a", at=at), one) == expected  # type: ignore[arg-type]


def test_a_row_against_another_at_twice_the_steps() -> None:
    assert values(Sooner(text="", row="b", over="a"), network("x", a=[10, 20, 30], b=[25, 28, 50])) == {4: 5, 8: -2}


def test_shares_of_the_ann() -> None:
    one = network("x", ann=80, a=[40, 79], b=[60, 79.5])
    assert values(Kept(text="", row="a"), one) == {4: 50, 8: 98.75}
    # half of the forty points are closed; a gap of one point, within noise for 1,000 images, is not judged
    assert values(Closed(text="", row="b", over="a"), one) == {4: 50}
    fails = Kept(text="", row="a", most=50)
    assert verdicts(fails, network("x", ann=80, a=8), network("y", ann=80, a=60)) == {"x": "seen", "y": "not seen"}
    assert verdicts(fails, network("x", ann=80, a=0.1)) == {"x": "seen"}  # almost nothing is also below half


def test_deviations_are_compared_over_five_seeds() -> None:
    claim = Steadier(text="", row="many", over="few")

    def of(few: float | None, many: float | None, seeds: int = 5) -> dict[str, str]:
        rows = {"few": {8: Column(50, few, seeds, 1000, 90)}, "many": {8: Column(50, many, seeds, 1000, 90)}}
        return verdicts(claim, Network("x", True, rows))

    # deviations of five values are known to their 1/sqrt(8)th part: 1 and 0.3 to 0.37, 1 and 0.8 to 0.45
    assert of(1.0, 0.3) == {"x": "seen"}
    assert of(0.3, 1.0) == {"x": "not seen"}
    assert of(1.0, 0.8) == {"x": "level"}
    assert of(1.0, 0.3, seeds=4) == of(None, None, seeds=1) == {}


def test_networks_with_and_without_bn() -> None:
    lost = LostByBN(text="", row="a")
    nets = [
        network("resnet20-nobn", False, 80, a=75),  # loses 5
        network("vgg16-half", True, 95, a=90),  # loses 5
        network("resnet20", True, 90, a=60),  # loses 30
        network("vgg16-half-nobn", False, 95, a=70),  # loses 25
    ]
    first, second = "resnet20, resnet20-nobn", "vgg16-half, vgg16-half-nobn"
    assert verdicts(lost, *nets) == {first: "seen", second: "not seen"}
    assert verdicts(WithBN(text="", row="a", without="a"), *nets) == {first: "not seen", second: "seen"}
    own = network("f.py:a", True, 90, a=60), network("f.py:b", False, 90, a=88)
    assert verdicts(lost, *own) == {"f.py:a, f.py:b": "seen"}
    # 2 points more: the four shares it comes from are known to 2.4
    close = network("net", True, 60, a=46), network("net-nobn", False, 60, a=48)
    assert verdicts(lost, *close) == {"net, net-nobn": "level"}
    # 12 points more, of seeds that differ by 13
    wide = network("net", True, 60, std=13.0, a=40), network("net-nobn", False, 60, a=52)
    assert verdicts(lost, *wide) == {"net, net-nobn": "level"}
    assert values(Kept(text="", row="a", bn=False), *nets[2:]) == {4: 100 * 70 / 95}


def papers(name: str) -> Sequence[Network]:
    return paper_networks(name, {row.label: row.elsewhere for row in find(name).rows if row.elsewhere})


def test_the_papers_figures_as_networks() -> None:
    vgg, resnet = papers("lcp")
    assert (vgg.model, vgg.bn, resnet.model) == ("VGG-16 on ImageNet", True, "ResNet-34 on ImageNet")
    assert resnet.rows["MMSE* + LCP"][16] == Column(28.2, None, 5, None, 75.66)
    assert resnet.rows["MMSE*, uncalibrated"][32] == Column(10.83, 0.67, 5, None, 75.66)  # of the ImageNet table
    (samples,) = papers("samples")
    assert samples.rows["ACP, 1,024 images"] == {0: Column(70.57, 0.14, 5, None, None)}
    assert {(n.model, n.bn) for n in papers("imagenet")} >= {
        ("VGG-16 on ImageNet", True),
        ("VGG-16 on ImageNet-nobn", False),
    }


# Where the paper's own figures are not what it says: network, T, in its table and by its claim.
SLIPS = {
    ("threshold", "MMSE* beats MMSE"): [("ResNet-34", 32)],
    ("lcp", "Percentile 99.99 % + LCP beats MaxAct + LCP"): [("ResNet-34", 16)],
    ("acp", "MMSE* + ACP beats MMSE + ACP"): [("ResNet-34", 32)],
    ("cifar", "Baseline + ACP beats Baseline + LCP"): [("ResNet-20 (64-128-256)", 512)],
    ("imagenet", "Baseline + LCP beats Baseline"): [("ResNet-34", 2048)],
    # "as the time extends"
    ("imagenet", "with BN and LCP beats without BN and LCP"): [
        (name, T) for name in ("ResNet-34", "VGG-16") for T in (16, 32, 64)
    ],
    ("imagenet", "with BN and ACP beats without BN and LCP"): [("ResNet-34", 16), ("VGG-16", 16), ("VGG-16", 32)],
}


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.measures])
def test_claims_hold_for_the_papers_figures(name: str) -> None:
    for claim in SAID[name]:
        sizes = claim.sizes(papers(name))
        # of ours the paper has no figures; without BN it has none in `cifar`
        assert bool(sizes) == (not claim.ours and not (name == "cifar" and isinstance(claim, WithBN)))
        against = [(s.models[0].partition(" on ")[0], s.T) for s in sizes if claim.verdict(s) == "not seen"]
        assert against == SLIPS.get((name, claim.text), [])


def test_the_paper_beside_ours_is_of_its_kind_and_of_the_same_network_where_there_is_one() -> None:
    def summary(model: str, bn: bool, data: str) -> dict[str, object]:
        columns = {"4": {"mean": 50.0, "std": None, "values": [50.0], "images": 10}}
        rows = [{"method": row.label, "columns": columns} for row in find("cifar").rows]
        ann = [{"images": 10, "accuracy": 90.0}]
        return {"kind": "accuracy", "networks": [{"model": model, "bn": bn, "data": data, "ann": ann, "rows": rows}]}

    def beside(model: str, bn: bool, data: str) -> dict[str, float]:
        first = judge(find("cifar"), summary(model, bn, data))[0]
        assert (first["claim"], first["verdict"], first["size"]) == ("Baseline + LCP beats Baseline", "level", 0.0)
        return {printed["model"]: round(printed["size"], 2) for printed in first["paper"]}

    assert beside("vgg16", True, "cifar10") == {"VGG-16 on CIFAR-10": 40.97}
    assert beside("vgg16", True, "cifar100") == {"VGG-16 on CIFAR-100": 24.15}
    assert len(beside("resnet20", True, "cifar10")) == len(paper_tables()["cifar"]["blocks"]) == 4
    assert beside("resnet20-nobn", False, "cifar10") == {}
