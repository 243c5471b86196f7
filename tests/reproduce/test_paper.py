"""The paper's figures were transcribed as they are printed, and stand beside the networks they are of."""

from typing import Any

import pytest
import torch

from spikecal.reproduce.classifiers import Classifier
from spikecal.reproduce.paper import paper_tables
from spikecal.reproduce.run import Plan
from spikecal.reproduce.sizes import Sizes
from spikecal.reproduce.summary import _with_paper
from spikecal.reproduce.tables import find
from spikecal.zoo.models import ZOO

WIDE = "ResNet-20 (64-128-256)"

# One number a row, by `check`, computed from the tables in the paper's source and not from `paper.json`.
CHECKS = {
    "clipround": {
        "VGG-16, ImageNet, no BN": {
            "MaxAct + ClipFloor": 7_295, "MaxAct + ClipRound": 41_483, "MMSE + ClipFloor": 35_985,
            "MMSE + ClipRound": 49_439,
        },
        "ResNet-34, ImageNet, no BN": {
            "MaxAct + ClipFloor": 9_351, "MaxAct + ClipRound": 26_419, "MMSE + ClipFloor": 28_667,
            "MMSE + ClipRound": 37_027,
        },
    },
    "threshold": {
        "VGG-16, ImageNet, no BN": {"MaxAct": 41_483, "Percentile 99.99 %": 47_419, "MMSE": 49_439, "MMSE*": 49_511},
        "ResNet-34, ImageNet, no BN": {"MaxAct": 26_419, "Percentile 99.99 %": 32_669, "MMSE": 37_027, "MMSE*": 39_965},
    },
    "bn": {
        "VGG-16, ImageNet, no BN": {"MMSE + ClipRound": 49_439},
        "ResNet-34, ImageNet, no BN": {"MMSE + ClipRound": 37_027},
        "VGG-16, ImageNet, BN": {"MMSE + ClipRound": 7_796},
        "ResNet-34, ImageNet, BN": {"MMSE + ClipRound": 8_700},
    },
    "lcp": {
        "VGG-16, ImageNet, BN": {
            "MaxAct + LCP": 8_218, "Percentile 99.99 % + LCP": 9_030, "MMSE + LCP": 21_740, "MMSE* + LCP": 38_576,
        },
        "ResNet-34, ImageNet, BN": {
            "MaxAct + LCP": 8_346, "Percentile 99.99 % + LCP": 9_378, "MMSE + LCP": 32_742, "MMSE* + LCP": 35_232,
        },
    },
    "acp": {
        "VGG-16, ImageNet, BN": {
            "MaxAct + ACP": 8_258, "Percentile 99.99 % + ACP": 28_480, "MMSE + ACP": 47_688, "MMSE* + ACP": 48_178,
        },
        "ResNet-34, ImageNet, BN": {
            "MaxAct + ACP": 23_450, "Percentile 99.99 % + ACP": 33_628, "MMSE + ACP": 44_484, "MMSE* + ACP": 43_722,
        },
    },
    "cifar": {
        f"{WIDE}, CIFAR-10, no BN": {"Spike-Norm": 96_315, "Hybrid Train": 102_200, "RMP": 100_452, "TSC": 156_024},
        f"{WIDE}, CIFAR-100, no BN": {"Spike-Norm": 71_007, "Hybrid Train": -66, "RMP": 96_757, "TSC": 121_741},
        f"{WIDE}, CIFAR-10, BN": {"Baseline": 265_972, "Baseline + LCP": 291_590, "Baseline + ACP": 295_525},
        f"{WIDE}, CIFAR-100, BN": {"Baseline": 210_423, "Baseline + LCP": 236_640, "Baseline + ACP": 241_366},
        "VGG-16, CIFAR-10, no BN": {
            "Robust-Norm": 142_481, "Spike-Norm": 100_665, "Hybrid Train": 101_706, "RMP": 151_186, "TSC": 102_938,
            "RNL": 205_251,
        },
        "VGG-16, CIFAR-100, no BN": {
            "Robust-Norm": -66, "Spike-Norm": 77_837, "Hybrid Train": -66, "RMP": 129_013, "TSC": 133_933, "RNL": -66,
        },
        "VGG-16, CIFAR-10, BN": {"Baseline": 268_152, "Baseline + LCP": 287_709, "Baseline + ACP": 291_907},
        "VGG-16, CIFAR-100, BN": {"Baseline": 177_707, "Baseline + LCP": 215_450, "Baseline + ACP": 227_600},
    },
    "imagenet": {
        "ResNet-34, ImageNet, no BN": {
            "Spike-Norm": 85_555, "Hybrid Train": 146_552, "RMP": 146_514, "TSC": 146_562, "Baseline": 290_187,
            "Baseline + LCP": 295_933,
        },
        "ResNet-34, ImageNet, BN": {"Baseline": 262_766, "Baseline + LCP": 299_700, "Baseline + ACP": 311_467},
        "VGG-16, ImageNet, no BN": {
            "Spike-Norm": 90_926, "Hybrid Train": 147_825, "RMP": 143_309, "TSC": 165_143, "Baseline": 306_970,
            "Baseline + LCP": 308_120,
        },
        "VGG-16, ImageNet, BN": {"Baseline": 253_254, "Baseline + LCP": 304_090, "Baseline + ACP": 316_502},
        "MobileNet, ImageNet, BN": {"Baseline": 115_013, "Baseline + LCP": 215_816, "Baseline + ACP": 263_502},
        "MNasNet×2, ImageNet, BN": {"Baseline": 195_890, "Baseline + LCP": 263_968, "Baseline + ACP": 286_597},
        "RegNetX-4GF, ImageNet, BN": {"Baseline": 120_112, "Baseline + LCP": 290_755, "Baseline + ACP": 311_515},
    },
    "time": {
        "VGG-16, CIFAR-100, BN": {"GPU": 178_126, "CPU": 140_778},
        "MobileNet, ImageNet, BN": {"GPU": 1_073_384, "CPU": 1_213_378},
    },
    "samples": {
        "ResNet-34, ImageNet, BN": {"LCP": 129_187, "ACP": 252_945},
    },
    "fakedata": {
        "ResNet-34, ImageNet, BN": {"Real images + ACP": 138_329, "Distilled images + ACP": 134_018},
    },
    "detect": {
        "RetinaNet, ResNet-50, COCO, BN": {"Baseline": 55_636, "Baseline + LCP": 63_456, "Baseline + ACP": 69_796},
        "Faster R-CNN, ResNet-50, COCO, BN": {"Baseline": 64_936, "Baseline + LCP": 69_396, "Baseline + ACP": 73_516},
    },
}  # fmt: skip

COLUMNS = {  # of the tables whose columns are not compared with ours in test_tables.py
    "time": ["Bias", "Potential", "Weights"],
    "space": ["Bias", "Potential", "Weights"],
    "samples": ["32", "64", "128", "256", "512", "1024"],
    "fakedata": ["T=16", "T=32", "T=64", "T=128"],
    "detect": ["T=32", "T=64", "T=128", "T=256"],
}


def check(ann: float | None, values: list[Any]) -> int:
    """The sum of place × hundredths over the ANN's figure as printed, then mean and deviation of each column.

    What is not printed counts as -1. A figure that is changed, left out or in another's place gives another number.
    """
    figures = [ann]
    for value in values:
        figures += value if isinstance(value, list) else [value, None]
    return sum(place * (-1 if f is None else round(100 * f)) for place, f in enumerate(figures, 1))


@pytest.mark.parametrize("name", CHECKS)
def test_figures_are_the_papers(name: str) -> None:
    found: dict[str, dict[str, int]] = {}
    for block in paper_tables()[name]["blocks"]:
        printed = block.get("ann_printed", block["ann"])
        for row in block["rows"]:
            bn = "BN" if row.get("bn", block["bn"]) else "no BN"
            rows = found.setdefault(f"{block['network']}, {block['data']}, {bn}", {})
            assert row["method"] not in rows
            rows[row["method"]] = check(row.get("ann", printed), row["values"])
    assert found == CHECKS[name]


def test_figures_of_the_text() -> None:
    """Memory is in no table. The bias of ResNet-34, printed as 0.3653, is the only figure that was corrected."""
    resnet, mobilenet = paper_tables()["space"]["blocks"]
    assert resnet["printed"] == {"Bias": 0.3653}
    assert resnet["rows"][0]["values"] == [round(9576 * 4 / 2**20, 4), 18.76, 83.25]
    assert mobilenet["rows"][0]["values"] == [None, 19.81, 12.21]


def test_the_two_accuracies_that_captions_swap_are_put_right() -> None:
    """Against the ImageNet table, which has each of them beside its network."""
    blocks = [block for table in paper_tables().values() for block in table["blocks"] if "ann_printed" in block]
    assert len(blocks) == 6
    assert {(block["network"], block["ann"]) for block in blocks} == {("VGG-16", 75.36), ("ResNet-34", 75.66)}


def test_columns_are_the_papers() -> None:
    assert {name: paper_tables()[name]["columns"] for name in COLUMNS} == COLUMNS


@pytest.mark.parametrize(
    ("spec", "expected"), [("resnet34-imagenet", [0.22, 0.06]), ("resnet34-imagenet-nobn", [43.69, 0.33])]
)
def test_a_network_has_the_figures_of_its_own_kind_beside_it(spec: str, expected: list[float]) -> None:
    """One block of the table has both rows of a method, with BN and without."""
    with torch.device("meta"):
        network = ZOO[spec].make()
    subject = Classifier(spec=spec, network=network, card=ZOO[spec].card, data="imagenet:somewhere")
    rows = [{"method": "Baseline", "columns": {"16": {}}}]
    plan = Plan(find("imagenet"), Sizes(), (16,), {spec: subject}, [])
    assert _with_paper(plan, subject, rows)[0]["columns"]["16"]["paper"] == expected
