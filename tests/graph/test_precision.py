"""Float types, devices and the batch size of the example."""

import pytest
import torch
from torch import nn

from spikecal.graph.lowering.lower import lower


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 5),
    ).eval()  # fmt: skip


def test_float64_stays_and_is_exact():
    model = network().double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    graph = lower(model, (x,))
    assert graph.nodes["0"].op.weight.dtype == torch.float64
    assert torch.allclose(graph.run(x), model(x), rtol=0, atol=1e-12)


def test_a_float32_example_is_cast_to_the_models_type():
    model = network().double()
    assert lower(model, (torch.randn(2, 3, 8, 8),)).nodes["6"].op.weight.dtype == torch.float64


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_half_precision_becomes_float32(dtype, tolerance):
    model = network().to(dtype)
    x = torch.randn(2, 3, 8, 8)
    graph = lower(model, (x.to(dtype),))
    assert {t.dtype for n in graph.nodes.values() for t in n.op.tensors().values()} == {torch.float32}
    assert model[0].weight.dtype == dtype
    exact = network()
    exact.load_state_dict(model.state_dict())
    assert torch.allclose(graph.run(x), exact(x), atol=1e-5)
    assert (graph.run(x) - model(x.to(dtype)).float()).abs().max() < tolerance * exact(x).abs().max()


def test_casts_inside_the_model_are_gone():
    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x.float()).double().float().to(self.conv.weight.dtype)

    assert list(lower(Casting(), (torch.randn(2, 3, 5, 5),)).nodes) == ["x", "conv"]


def test_an_example_of_one_image_distinguishes_the_batch_from_a_size_of_one():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x).mean((2, 3), keepdim=True).squeeze().view(-1, 4)

    model = Pooled().eval()
    graph = lower(model, (torch.randn(1, 3, 5, 5),))
    for batch in (2, 4):
        x = torch.randn(batch, 3, 6, 7)
        assert torch.allclose(graph.run(x), model(x), atol=1e-6)
    assert graph.run(torch.randn(1, 3, 5, 5)).shape == (1, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports what torch itself deprecates
def test_a_compiled_model_is_unwrapped():
    model = network()
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(lower(torch.compile(model), (x,)).run(x), model(x), atol=1e-5)


def test_tensors_are_on_the_models_device():
    graph = lower(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(2, 3, 8, 8),))
    assert {t.device.type for n in graph.nodes.values() for t in n.op.tensors().values()} == {"cpu"}


def test_gradients_are_not_kept():
    graph = lower(network(), (torch.randn(2, 3, 8, 8),))
    assert not any(t.requires_grad for n in graph.nodes.values() for t in n.op.tensors().values())
    assert not graph.run(torch.randn(2, 3, 8, 8)).requires_grad


def test_a_network_that_amplifies_rounding_is_checked_with_more_bits(caplog):
    class Amplifying(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.bn(self.conv(x))
            return (y + 1e5) - 1e5  # loses most of the digits in float32

    torch.manual_seed(0)
    model = Amplifying().eval()
    model.bn.running_mean.normal_()
    lower(model, (torch.randn(2, 3, 8, 8),))
    assert "rounding alone changes the outputs" in caplog.text


def test_a_model_of_several_float_types_becomes_one_of_the_widest():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3).half(), nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.conv(x.half()).relu().mean((2, 3)).float())

    model = Mixed()
    graph = lower(model, (torch.randn(2, 3, 6, 6),))
    assert {t.dtype for n in graph.nodes.values() for t in n.op.tensors().values()} == {torch.float32}


def test_integers_of_other_libraries_are_integers():
    import numpy as np

    pool = nn.AvgPool2d(np.int64(2), stride=np.int64(1))
    assert lower(nn.Sequential(pool), (torch.randn(2, 3, 6, 6),)).nodes["0"].op.kernel == (2, 2)
