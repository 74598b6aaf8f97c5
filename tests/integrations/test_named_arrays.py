"""Weights and averages of named arrays are those of the engine's round; needs neither Flower nor PyTorch."""

import numpy as np
import one_round
import pytest
from support import worlds

from fedvg_jax import config
from fedvg_jax.integrations import named_arrays
from fedvg_jax.integrations.named_arrays import Client

MODEL = {
    "conv.weight": np.array([1.0, -2.0], np.float32),
    "head.bias": np.array([0.5], np.float32),
    "bn.running_mean": np.array([3.0], np.float32),
    "bn.count": np.array(4),
}
CLIENTS = [
    Client(
        {name: (array + k + 1).astype(array.dtype) for name, array in MODEL.items()},
        num_samples=10 * (k + 1),
    )
    for k in range(3)
]
NORMS = {"conv.weight": np.array([1.0, 2.0, 4.0]), "head.bias": np.array([3.0, 1.0, 2.0])}


def gradient(arrays):
    """Returns a gradient whose L1 norms are those of NORMS, by the client that the arrays are of."""
    client = round(float(arrays["bn.running_mean"][0] - MODEL["bn.running_mean"][0])) - 1
    return {
        name: np.full(MODEL[name].shape, norms[client] / MODEL[name].size)
        for name, norms in NORMS.items()
    }


def scheme(block_of=None, gradient=gradient, **settings):
    return named_arrays.make_scheme(
        config.check(config.Config(**settings)), gradient, MODEL, block_of
    )


@one_round.every_case()
def test_round_of_named_arrays_equals_the_round_of_the_engine(case):
    start = worlds.variables()
    expected, weights_of_engine = one_round.engine_round(case, start)
    model = one_round.named(start)
    scheme = one_round.scheme(case, model)
    schedule = one_round.WORLD.schedule(0)
    clients = [
        Client(one_round.named(one_round.trained(start, k)), len(one_round.WORLD.train[k]))
        for k in schedule.clients
    ]
    weights = named_arrays.weigh(scheme, model, clients, schedule.shuffle)
    mean = named_arrays.average(model, [client.arrays for client in clients], weights)
    np.testing.assert_allclose(weights.mean, weights_of_engine, atol=1e-5)
    worlds.assert_close(one_round.variables_of(mean), expected, 1e-5)


@pytest.mark.quick
def test_counters_are_rounded_means_and_dtypes_stay():
    """Those of the global model, whatever the clients return."""
    others = {"head.bias": np.float64, "bn.count": np.int32}
    wide = [
        {name: array.astype(others.get(name, array.dtype)) for name, array in c.arrays.items()}
        for c in CLIENTS
    ]
    clients = [Client(arrays, c.num_samples) for arrays, c in zip(wide, CLIENTS, strict=True)]
    weights = named_arrays.weigh(scheme(weighting="samples"), MODEL, clients)
    mean = named_arrays.average(MODEL, [client.arrays for client in clients], weights)
    assert list(mean) == list(MODEL) and all(
        isinstance(array, np.ndarray) for array in mean.values()
    )
    assert {name: array.dtype for name, array in mean.items()} == {
        name: array.dtype for name, array in MODEL.items()
    }
    assert mean["bn.count"] == 6  # 4 + (1 * 10 + 2 * 20 + 3 * 30) / 60 = 6.33
    np.testing.assert_allclose(mean["head.bias"], [0.5 + 14 / 6], rtol=1e-6)


@pytest.mark.parametrize("where", ["model", "score"])
def test_client_with_anything_nonfinite_has_weight_0(where):
    broken = CLIENTS[1].arrays | {"head.bias": np.array([np.nan], np.float32)}
    clients = [CLIENTS[0], Client(broken, 20), CLIENTS[2]] if where == "model" else CLIENTS

    def of_client(arrays):
        is_broken = where == "score" and arrays["head.bias"] == 2.5
        return {name: np.full_like(arrays[name], np.nan if is_broken else 1.0) for name in NORMS}

    weights = named_arrays.weigh(scheme(gradient=of_client), MODEL, clients)
    assert weights.participating.tolist() == [True, False, True]
    assert weights.mean.tolist() == [0.5, 0, 0.5] and np.isnan(weights.scores[1])
    mean = named_arrays.average(MODEL, [client.arrays for client in clients], weights)
    np.testing.assert_allclose(mean["head.bias"], [2.5], rtol=1e-6)
    alone = named_arrays.weigh(scheme(gradient=of_client), MODEL, [Client(broken, 1)])
    assert not alone.participating.any() and alone.mean.tolist() == [0]


@pytest.mark.parametrize(
    ("weighting", "named"),
    [("fedvg", {"signal": "delta"}), ("generalised", {"norm": "delta"})],
    ids=str,
)
def test_signal_delta_measures_the_update_and_not_the_gradient(named, weighting):
    """Client k moves every entry by k + 1, and the mean over two tensors is of 2 and 1 entries."""
    weights = named_arrays.weigh(scheme(weighting=weighting, fedvg=named), MODEL, CLIENTS)
    np.testing.assert_allclose(weights.scores, [1.5, 3.0, 4.5], rtol=1e-6)
    np.testing.assert_allclose(weights.mean, np.array([6, 3, 2]) / 11, rtol=1e-6)


def test_equal_large_counters_stay_as_they_are():
    thirds = np.full(3, 1 / 3, np.float32)
    for count in (10**12 + 7, 2**60 + 1):
        model, clients = {"n": np.array(0)}, 3 * [{"n": np.array(count)}]
        mean = named_arrays.average(
            model, clients, named_arrays.Weights({}, thirds, thirds, np.ones(3, bool))
        )
        assert mean["n"] == count


def scheme_of(model, gradient=lambda arrays: arrays):
    return named_arrays.make_scheme(config.Config(), gradient, model)


def test_a_gradient_cannot_change_the_models():
    def gradient(arrays):
        arrays["w"] *= 3
        return {"w": arrays["w"]}

    model, client = (
        {"w": np.array([1.0, 2.0], np.float32)},
        {"w": np.array([5.0, 10.0], np.float32)},
    )
    made = scheme_of(model, gradient)
    named_arrays.weigh(made, model, 2 * [Client(client, 1)])
    assert model["w"].tolist() == [1, 2] and client["w"].tolist() == [5, 10]
