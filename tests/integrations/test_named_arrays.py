"""Averages of named arrays; needs neither Flower nor PyTorch. `test_flower.py` compares them with the engine's."""

import numpy as np
import pytest

from fedvg_jax.integrations import named_arrays

pytestmark = pytest.mark.quick

MODEL = {"head.bias": np.array([0.5], np.float32), "bn.count": np.array(4)}


def test_counters_are_rounded_means_and_dtypes_are_those_of_the_model():
    clients = [{"head.bias": np.float64([k]), "bn.count": np.int32(4 + k)} for k in (1, 2, 3)]
    weights = {"head.bias": np.array([1, 2, 3]) / 6}
    mean = named_arrays.average(MODEL, clients, weights)
    assert {name: (a.dtype, a.tolist()) for name, a in mean.items()} == {
        "head.bias": (np.float32, [pytest.approx(14 / 6)]),
        "bn.count": (np.int64, 6),  # 4 + (1 + 4 + 9) / 6 = 6.33
    }


def test_a_client_that_is_not_finite_has_weight_0_and_is_not_read():
    gradients = [{"head.bias": np.full(1, norm)} for norm in (1.0, np.nan, 3.0)]
    weights = named_arrays.inverse_norm_weights(gradients, MODEL, eps=0.0)
    np.testing.assert_allclose(weights["head.bias"], [0.75, 0, 0.25], rtol=1e-6)
    clients = [{"head.bias": np.full(1, v), "bn.count": np.array(8)} for v in (1.0, np.nan, 5.0)]
    mean = named_arrays.average(MODEL, clients, weights)
    assert mean["head.bias"] == 2 and mean["bn.count"] == 8
