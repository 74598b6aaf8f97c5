"""Scores, weights and averages of PyTorch's state dicts, against the package's own functions."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

from fedvg_jax import weightings
from fedvg_jax.core.types import Batch
from fedvg_jax.engine import schedule
from fedvg_jax.weightings import signals

torch = pytest.importorskip("torch", reason="needs the extra torch")
from torch import nn  # noqa: E402

from fedvg_jax.integrations import named_arrays, torch as fedvg_torch  # noqa: E402

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
    x, y = torch.rand((10, 6), generator=generator), torch.randint(0, 3, (10,), generator=generator)
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
    return jax.tree.map(jnp.asarray, named_arrays.Variables(params, stats))


def named_as_in_torch(params):
    """Returns a tree like the parameters of `worlds`, by torch's names."""
    names = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    return {
        f"{m}.{names[leaf]}": value
        for m, leaves in params.items()
        for leaf, value in leaves.items()
    }


def images(minibatches):
    return jnp.asarray(torch.cat([x for x, _ in minibatches]).numpy().reshape(-1, *worlds.IMAGE))


@pytest.mark.parametrize("train", [True, False])
def test_validation_gradient_equals_that_of_the_jax_model(nets, minibatches, train):
    x, y = (
        images(minibatches),
        jnp.asarray(torch.cat([y for _, y in minibatches]).numpy().astype(np.int32)),
    )
    groups = jnp.asarray(
        schedule.split_into_minibatches(np.arange(10, dtype=np.int32), 4, keep_single=True)
    )
    data = named_arrays.Data(Batch(x, y), groups, groups, groups)
    client = named_arrays.ClientReturn(variables_of(nets[0]), None, None)
    expected = signals.validation_gradient(worlds.TASK, train, 1)({}, client, data)
    actual = fedvg_torch.validation_gradients(nets[0], LOSS, minibatches, train=train)
    expected = named_as_in_torch(jax.tree.map(np.asarray, expected))
    for name, gradient in actual.items():
        np.testing.assert_allclose(gradient.numpy(), expected[name].T, atol=1e-5, err_msg=name)
    state = {name: tensor.numpy() for name, tensor in nets[0].state_dict().items()}
    arrays = {name: array for name, array in state.items() if array.dtype == np.float32}
    of_arrays = fedvg_torch.validation_gradient(Net(), LOSS, minibatches, train=train)(arrays)
    worlds.assert_close(
        of_arrays, {name: gradient.numpy() for name, gradient in actual.items()}, 1e-7
    )


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


def test_a_tied_tensor_has_one_weight_under_each_of_its_names():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    net[1].weight = net[0].weight
    rows = [(torch.ones(2, 4), torch.tensor([0, 1]))]
    gradient = fedvg_torch.validation_gradients(net, torch.nn.CrossEntropyLoss(), rows)
    assert gradient.keys() == net.state_dict().keys()
    clients = [gradient, {name: 3 * tensor for name, tensor in gradient.items()}]
    for tensor in fedvg_torch.inverse_norm_weights(clients, net.state_dict(), "layerwise").values():
        torch.testing.assert_close(tensor, torch.tensor([0.75, 0.25]))


def test_layers_with_dropout_of_their_own_are_scored_without_it():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
            self.recurrence = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, x):
            return self.recurrence(self.attention(x))[0].mean(1)

    net, rows = Sequence(), [(torch.randn(8, 5, 4), torch.arange(8) % 3)]
    first, second = (fedvg_torch.validation_gradients(net, LOSS, rows) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("granularity", "norm"), [("modelwise", "l1"), ("layerwise", "l2"), ("blockwise", "l1")]
)
def test_weights_and_mean_equal_those_of_the_package(nets, minibatches, granularity, norm):
    states = [net.state_dict() for net in nets]
    start = Net().state_dict()
    gradients = [fedvg_torch.validation_gradients(net, LOSS, minibatches) for net in nets]
    weights = fedvg_torch.inverse_norm_weights(gradients, start, granularity, norm=norm)
    stacked = {
        name.replace(".", "/"): jnp.stack([jnp.asarray(g[name].numpy()) for g in gradients])
        for name in gradients[0]
    }
    expected = weightings.inverse_norm_weights(
        weightings.gradient_norms(stacked, norm), granularity
    )
    by_name = {path.replace("/", "."): np.asarray(w) for path, w in expected.items()}
    for name, of_tensor in by_name.items():
        np.testing.assert_allclose(weights[name].numpy(), of_tensor, rtol=1e-6, err_msg=name)
    uniform = np.full(3, 1 / 3)
    statistics = {
        "modelwise": by_name["bn1.weight"],
        "layerwise": uniform,
        "blockwise": by_name["bn1.weight"],
    }
    np.testing.assert_allclose(
        weights["bn1.running_mean"].numpy(), statistics[granularity], rtol=1e-6
    )
    mean = fedvg_torch.aggregate(start, states, weights)
    for name, w in weights.items():
        theta, clients = (
            jnp.asarray(t.numpy()) for t in (start[name], torch.stack([s[name] for s in states]))
        )
        expected = weightings.aggregate(theta, clients, jnp.asarray(w.numpy()))
        np.testing.assert_allclose(mean[name].numpy(), expected, rtol=1e-6, err_msg=name)
    net = Net()
    net.load_state_dict(mean)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_floating_dtype_is_averaged_in_its_own_precision(dtype):
    clients = [{"w": torch.tensor([1.0, 2.0], dtype=dtype), "n": torch.tensor(k)} for k in (2, 5)]
    weights = {"w": torch.tensor([0.25, 0.75])}
    mean = fedvg_torch.aggregate(
        {"w": torch.zeros(2, dtype=dtype), "n": torch.tensor(0)}, clients, weights
    )
    assert mean["w"].dtype == dtype and mean["w"].tolist() == [1, 2] and mean["n"].item() == 4
    if dtype == torch.float64:
        third = torch.tensor([1 / 3], dtype=dtype)
        close = fedvg_torch.aggregate({"w": third}, [{"w": third}, {"w": third + 1e-12}], weights)
        assert abs(close["w"].item() - (1 / 3 + 0.75e-12)) < 1e-15


def test_a_gradient_that_is_not_finite_gives_its_client_weight_zero_and_a_sparse_one_counts():
    gradients = [{"w": torch.tensor(values)} for values in ([1.0, 0.0], [float("inf"), 0.0])]
    gradients.append({"w": torch.tensor([3.0, 0.0]).to_sparse()})
    weights = fedvg_torch.inverse_norm_weights(gradients, {"w": torch.zeros(2)}, eps=0.0)["w"]
    np.testing.assert_allclose(weights, [0.75, 0.0, 0.25], rtol=1e-6)
