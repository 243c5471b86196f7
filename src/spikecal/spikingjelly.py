"""Networks as modules of SpikingJelly's own layers and neurons, for its monitors, training and kernels."""

from typing import Literal

import torch
from torch import Tensor, nn

from spikecal.export.export import make_netlist
from spikecal.export.spikingjelly import module_of
from spikecal.snn.network import SpikingNetwork


def to_module(snn: SpikingNetwork, images: Tensor | None = None, *, step_mode: Literal["s", "m"] = "m") -> nn.Module:
    """The network as an ordinary SpikingJelly module with the calibrated parameters.

    It takes the output of `snn.export_inputs(x)`, all steps at once in mode `m` and one at a time in mode `s`;
    `snn.export_outputs` turns what it returns into answers. `images` are needed if the network does not know their
    size.
    """
    return module_of(make_netlist(snn, images).to(torch.float), step_mode)
