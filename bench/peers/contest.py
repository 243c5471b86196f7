"""Who is compared: spikecal and its peers."""

from collections.abc import Callable
from typing import Any

import sinabs.layers
from libraries import sinabs_at_once, sinabs_converted, sinabs_stepwise, spikingjelly
from peer import Net, Peer, Way
from plain_loop import Neurons, plain_loop, plainly_converted
from spikingjelly.activation_based import ann2snn
from torch import Tensor, nn

import spikecal

LTB_PART = 16  # images of a batch of local threshold balancing: 64 batches of 1,024 images, and it wants 50


class Spikecal(Peer):
    """It has one way to run, which is cut into calls by itself."""

    def ways(self) -> list[Way]:
        return [self.documented]

    def laid_out(self, net: Net, way: Way) -> None:
        """Its networks have a layout of their own."""


def by_pipeline(**settings: Any) -> Callable[[nn.Module, Tensor, int], Net]:
    return lambda model, images, T: spikecal.convert(model, images, T=T, **settings).snn


def mean_over_steps(net: Net, x: Tensor, T: int) -> Tensor:
    return net(x).unsqueeze(0)


def ours(**settings: Any) -> Peer:
    return Spikecal(by_pipeline(**settings), {"all steps of a layer at once": mean_over_steps}, nn.Module, for_T=True)


LTB = ann2snn.LocalThresholdBalancingRecipe
PEERS = {
    "spikecal, LCP": ours(pipeline="lcp"),
    "spikecal, PC": ours(pipeline="pc"),
    "spikecal, AUTO, low effort": ours(pipeline="auto", effort="low"),
    "SpikingJelly, channel-wise, half threshold": spikingjelly(
        mode="99.9%", channel_wise=True, half_threshold=True, pre_spike_maxpool=True
    ),
    "sinabs": Peer(
        sinabs_converted, {"all steps at once": sinabs_at_once, "step by step": sinabs_stepwise}, sinabs.layers.IAF
    ),
    "SpikingJelly, local threshold balancing": spikingjelly(LTB, LTB_PART),
    "SpikingJelly, 99.9 %": spikingjelly(mode="99.9%"),
    "SpikingJelly, max": spikingjelly(mode="Max"),
    "plain loop": Peer(plainly_converted, {"loop": plain_loop}, Neurons, True, lambda neurons: neurons.threshold),
}
OURS = "spikecal, LCP"
# only asked for answers: a run takes as long as with any other pipeline
ANSWERING = PEERS | {"spikecal, AUTO": ours(pipeline="auto")}
