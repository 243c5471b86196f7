"""Checkpoints as training tools write them."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import residual
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import spikecal
from spikecal.errors import FileError
from spikecal.zoo.weights import load_weights

TRAINED = residual(seed=1)
WEIGHTS = TRAINED.state_dict()
RAW = {key: torch.zeros_like(value) for key, value in WEIGHTS.items()}  # before averaging


class Module(nn.Module):
    """As Lightning has them: the network is an attribute, beside a loss and a metric with tensors of their own."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(5))
        self.register_buffer("confusion", torch.zeros(5, 5))


def under(prefix: str, state: dict[str, Tensor] = WEIGHTS) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def raw() -> nn.Module:
    model = residual()
    model.load_state_dict(RAW)
    return model


LIGHTNING: dict[str, Any] = {
    "epoch": 3,
    "global_step": 77,
    "pytorch-lightning_version": "2.5.0",
    "state_dict": Module(model=TRAINED).state_dict(),
    "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 3}}}},
    "optimizer_states": [torch.optim.SGD(TRAINED.parameters(), 0.1, momentum=0.9).state_dict()],
    "hyper_parameters": {"lr": 0.1},
}
CHECKPOINTS = {
    "Lightning": LIGHTNING,
    "Lightning, compiled": {"state_dict": Module(net=torch.compile(TRAINED)).state_dict()},
    "Lightning, averaged weights beside raw ones": {
        "state_dict": Module(model=raw(), ema_model=AveragedModel(TRAINED)).state_dict()
    },
    "DDP": under("module."),
    "DDP of a compiled network": under("module._orig_mod."),
    "compiled DDP": {"model": under("_orig_mod.module.")},
    "compiled": torch.compile(TRAINED).state_dict(),
    "a part compiled": {key.replace("stem.", "stem._orig_mod."): value for key, value in WEIGHTS.items()},
    "a part in DDP": {key.replace("stem.", "stem.module."): value for key, value in WEIGHTS.items()},
    "AveragedModel": AveragedModel(TRAINED).state_dict(),
    "timm's average": {"state_dict": RAW, "state_dict_ema": WEIGHTS},
    "an average with its rate": {"model": RAW, "ema": {"module": under("module."), "decay": 0.999}},
    "a shadow": {"model": RAW, "ema": {"shadow": WEIGHTS, "decay": 0.999}},
    "params_ema": {"params": RAW, "params_ema": WEIGHTS},
    "a state by another name": {"model_state": WEIGHTS, "best": 0.9},
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_the_trained_weights_are_found(kind: str, tmp_path: Path) -> None:
    torch.save(CHECKPOINTS[kind], tmp_path / "last.ckpt")
    model = residual()
    load_weights(model, tmp_path / "last.ckpt")
    assert all(torch.equal(value, WEIGHTS[key]) for key, value in model.state_dict().items())


def test_what_is_left_out_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(LIGHTNING, tmp_path / "last.ckpt")
    with caplog.at_level(logging.INFO, "spikecal"):
        load_weights(residual(), tmp_path / "last.ckpt")
    assert "using the weights under model, but not confusion, loss.weight" in caplog.text


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": Module(model=nn.Linear(3, 3)).state_dict()}, tmp_path / "last.ckpt")
    with pytest.raises(FileError, match="does not fit Residual: missing"):
        load_weights(residual(), tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    "wrap", [torch.compile, nn.DataParallel, AveragedModel, lambda model: AveragedModel(nn.DataParallel(model))]
)
def test_wrapped_networks_convert(wrap: Any) -> None:
    images = torch.rand(8, 3, 8, 8)
    plain = spikecal.convert(TRAINED, images, T=4, pipeline="lcp")
    wrapped = spikecal.convert(wrap(TRAINED), images, T=4, pipeline="lcp")
    assert torch.equal(wrapped.snn(images), plain.snn(images))


def test_a_script_is_refused_without_advice_to_run_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a newer way
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "net.pt")  # type: ignore[no-untyped-call]
    with pytest.raises(FileError, match=r"TorchScript archives .*; save model.state_dict\(\) again") as caught:
        load_weights(residual(), tmp_path / "net.pt")
    assert "weights_only=False" not in str(caught.value) and "=`False`" not in str(caught.value)
