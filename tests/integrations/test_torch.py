"""Scores, weights and averages of PyTorch's state dicts, against the package's own functions."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax.core.types import Batch, ClientReturn, Data, Variables
from fedvg_jax.engine import schedule
from fedvg_jax.weightings import signals

torch = pytest.importorskip("torch", reason="needs the extra torch")
from torch import nn  # noqa: E402

from fedvg_jax.integrations import torch as fedvg_torch  # noqa: E402

LOSS = nn.CrossEntropyLoss()


class Net(nn.Module):
    """Dense 6 -> 5, BatchNorm, ReLU, Dropout, dense 5 -> 3; the network of `worlds` with Dropout."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.bn1 = nn.BatchNorm1d(5)
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(5, 3)

    def forward(self, x):
        return self.classifier(self.dropout(torch.relu(self.bn1(self.fc1(x)))))


@pytest.fixture(scope="module")
def nets():
    """Three clients' models, none at a special value."""
    torch.manual_seed(0)
    made = [Net() for _ in range(3)]
    with torch.no_grad():
        for net in made:
            for tensor in [*net.parameters(), net.bn1.running_mean, net.bn1.running_var]:
                tensor.add_(torch.rand_like(tensor) / 3)
    return made


@pytest.fixture(scope="module")
def minibatches():
    """D_val in minibatches of 4, the last of 2 rows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((10, 6), generator=generator)
    y = torch.randint(0, 3, (10,), generator=generator)
    return [(x[i : i + 4], y[i : i + 4]) for i in range(0, 10, 4)]


def variables_of(net):
    """Returns the same model for the task of `worlds`."""
    state = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    dense = {
        name: {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}
        for name in ("fc1", "classifier")
    }
    params = {**dense, "bn1": {"scale": state["bn1.weight"], "bias": state["bn1.bias"]}}
    stats = {"bn1": {"mean": state["bn1.running_mean"], "var": state["bn1.running_var"]}}
    return jax.tree.map(jnp.asarray, Variables(params, stats))


def named_as_in_torch(params):
    """Returns a tree like the parameters of `worlds`, by torch's names."""
    names = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    return {
        f"{m}.{names[leaf]}": value
        for m, leaves in params.items()
        for leaf, value in leaves.items()
    }


@pytest.mark.parametrize("train", [True, False])
def test_validation_gradient_equals_that_of_the_jax_model(nets, minibatches, train):
    x, y = (torch.cat(arrays).numpy() for arrays in zip(*minibatches, strict=True))
    batch = Batch(jnp.asarray(x.reshape(-1, *worlds.IMAGE)), jnp.asarray(y.astype(np.int32)))
    groups = jnp.asarray(
        schedule.split_into_minibatches(np.arange(10, dtype=np.int32), 4, keep_single=True)
    )
    client = ClientReturn(variables_of(nets[0]), None, None)
    expected = signals.validation_gradient(worlds.TASK, train, 1)(
        {}, client, Data(batch, groups, groups, groups)
    )
    expected = named_as_in_torch(jax.tree.map(np.asarray, expected))
    arrays = {name: tensor.numpy() for name, tensor in nets[0].state_dict().items()}
    actual = fedvg_torch.validation_gradient(Net(), LOSS, minibatches, train=train)(arrays)
    for name, gradient in actual.items():
        np.testing.assert_allclose(gradient, expected[name].T, atol=1e-5, err_msg=name)


def test_scoring_leaves_the_model_as_it_was(nets, minibatches):
    net = copy.deepcopy(nets[0]).train()
    net.fc1.weight.grad = torch.ones_like(net.fc1.weight)
    before = copy.deepcopy(net.state_dict())
    fedvg_torch.validation_gradients(net, LOSS, minibatches)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert (
        net.training and net.dropout.training and torch.equal(net.fc1.weight.grad, torch.ones(5, 6))
    )


def test_frozen_parameters_have_no_gradient_and_unused_ones_have_0(minibatches):
    net = Net()
    net.fc1.requires_grad_(False)
    net.unused = nn.Linear(2, 2)
    gradients = fedvg_torch.validation_gradients(net, LOSS, minibatches)
    assert "fc1.weight" not in gradients and not gradients["unused.weight"].any()


def test_layers_with_dropout_of_their_own_are_scored_without_it():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
            self.recurrence = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.recurrence(self.attention(x))[0].mean(1)

    net = Sequence()
    rows = [(torch.randn(8, 5, 4), torch.arange(8) % 3)]
    first, second = (fedvg_torch.validation_gradients(net, LOSS, rows) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_and_mean_are_those_of_named_arrays_in_the_dtypes_of_the_model(nets, minibatches):
    states = [net.state_dict() for net in nets]
    start = Net().state_dict()
    gradients = [fedvg_torch.validation_gradients(net, LOSS, minibatches) for net in nets]
    weights = fedvg_torch.inverse_norm_weights(gradients, start, "layerwise", norm="l2")
    norms = torch.stack([g["fc1.weight"].norm() for g in gradients])
    torch.testing.assert_close(weights["fc1.weight"], 1 / norms / (1 / norms).sum())
    torch.testing.assert_close(weights["bn1.running_mean"], torch.full([3], 1 / 3))
    mean = fedvg_torch.aggregate(start, states, weights)
    stacked = torch.stack([state["fc1.weight"] for state in states])
    expected = torch.tensordot(weights["fc1.weight"], stacked, 1)
    torch.testing.assert_close(mean["fc1.weight"], expected)
    Net().load_state_dict(mean)
    halves = [{"w": torch.tensor([value], dtype=torch.bfloat16)} for value in (1.0, 3.0)]
    mean = fedvg_torch.aggregate(halves[0], halves, {"w": torch.tensor([0.25, 0.75])})["w"]
    assert mean.dtype == torch.bfloat16 and mean.item() == 2.5


def test_a_sparse_gradient_counts():
    gradients = [{"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, 0.0]).to_sparse()}]
    weights = fedvg_torch.inverse_norm_weights(gradients, {"w": torch.zeros(2)}, eps=0.0)["w"]
    np.testing.assert_allclose(weights, [0.75, 0.25], rtol=1e-6)
