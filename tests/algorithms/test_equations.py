"""Every algorithm's equation on a round of two clients with one parameter, by hand.

    theta <- theta_g - sum_k s_k (theta_g - theta_k) + R,      theta_g = 1, theta_1 = 0.8, theta_2 = 0.4, s = (1/4, 3/4)

so that u = sum_k s_k (theta_g - theta_k) = 0.25 x 0.2 + 0.75 x 0.6 = 0.5. The federation has N = 4 clients.
"""

import math
import types

import jax.numpy as jnp
import pytest
from support.cases import naming

from fedvg_jax import algorithms
from fedvg_jax.config import ALGORITHMS
from fedvg_jax.core.types import Anchor, Cohort, Outputs, Probe, Variables
from fedvg_jax.engine import local_training

THETA, TRAINED, WEIGHTS, N = 1.0, (0.8, 0.4), (0.25, 0.75), 4


def one(value):
    """A tree of one parameter."""
    return {"x": jnp.float32(value)}


def near(*values):
    return pytest.approx(values if len(values) > 1 else values[0], rel=1e-5)


def global_round(algorithm, hyper, server, memories=((), ()), displacements=(0.1, 0.2), update=None):
    """Returns the new theta, the server's memory and the clients' after a round; `update` replaces u."""
    reports = [
        algorithm.report(hyper, one(trained), Anchor(one(THETA), server, memory), jnp.float32(moved))
        for trained, memory, moved in zip(TRAINED, memories, displacements, strict=True)
    ]
    summed, averaged = (), ()
    if reports[0][1]:
        summed = one(sum(message["x"] for _, message, _ in reports))
    if reports[0][2]:
        parts = zip(*(message["x"] for _, _, message in reports), strict=True)
        averaged = {"x": tuple(sum(s * part for s, part in zip(WEIGHTS, both, strict=True)) for both in parts)}
    u = 0.5 if update is None else update
    cohort = Cohort(one(u), summed, averaged, {"x": jnp.array(WEIGHTS)}, (), N)
    residual, server = algorithm.residual(hyper, server, one(THETA), cohort)
    return float(THETA - u + residual["x"]), server, [memory for memory, *_ in reports]


def corrected(function, hyper, anchor, gradient=2.0, theta=0.8):
    """Returns a client's gradient 2 at theta = 0.8 as the algorithm changes it."""
    return float(function(hyper, one(gradient), one(theta), anchor)["x"])


# --- the server's step


def test_fedavg_takes_the_weighted_mean():
    """0.25 x 0.8 + 0.75 x 0.4 = 0.5."""
    assert global_round(algorithms.fedavg(), {}, ())[0] == near(0.5)


def test_fednova_averages_steps_per_displacement():
    """Displacements D = (0.1, 0.2): sum s D = 0.175, sum s delta / D = 0.25 x 2 + 0.75 x 3 = 2.75; 1 - 0.175 x 2.75."""
    assert global_round(algorithms.fednova(), {}, ())[0] == near(0.51875)


def test_fedavgm_takes_nesterov_steps():
    """v = 0.5, step 0.5 + 0.9 v = 0.95; then u = 0.1, v = 0.9 x 0.5 + 0.1 = 0.55, step 0.1 + 0.9 v = 0.595."""
    algorithm, hyper = algorithms.fedavgm(), {"avgm_lr": jnp.float32(1), "server_momentum": jnp.float32(0.9)}
    theta, server, _ = global_round(algorithm, hyper, algorithm.init(hyper, one(0))[0])
    assert theta == near(1 - 0.95)
    assert global_round(algorithm, hyper, server, update=0.1)[0] == near(1 - 0.595)


def two_adaptive_rounds(algorithm):
    """The steps of two rounds with u = 0.5 and 0.1; eta = 0.1, tau = 0.5, beta_1 = 0.9, beta_2 = 0.99, v = tau^2."""
    hyper = {name: jnp.float32(x) for name, x in {"server_lr": 0.1, "server_eps": 0.5, "b1": 0.9, "b2": 0.99}.items()}
    first, server, _ = global_round(algorithm, hyper, algorithm.init(hyper, one(0))[0])
    return 1 - first, 1 - global_round(algorithm, hyper, server, update=0.1)[0]


def test_fedadagrad_divides_by_the_root_of_summed_squares():
    """v = 0.25 + 0.25 = 0.5, then 0.51; no momentum."""
    expected = [0.1 * u / (math.sqrt(v) + 0.5) for u, v in ((0.5, 0.5), (0.1, 0.51))]
    assert two_adaptive_rounds(algorithms.fedadagrad()) == near(*expected)


def test_fedadam_divides_by_the_root_of_a_moving_average():
    """m = 0.05, then 0.9 x 0.05 + 0.01 = 0.055; v = 0.25, then 0.99 x 0.25 + 0.01 x 0.01 = 0.2476."""
    expected = [0.1 * m / (math.sqrt(v) + 0.5) for m, v in ((0.05, 0.25), (0.055, 0.2476))]
    assert two_adaptive_rounds(algorithms.fedadam()) == near(*expected)


def test_fedyogi_moves_v_by_the_square_whatever_the_distance():
    """m as in FedAdam; v = 0.25 - 0, then 0.25 - 0.01 x 0.01 x sign(0.25 - 0.01) = 0.2499."""
    expected = [0.1 * m / (math.sqrt(v) + 0.5) for m, v in ((0.05, 0.25), (0.055, 0.2499))]
    assert two_adaptive_rounds(algorithms.fedyogi()) == near(*expected)


def test_elastic_takes_smaller_steps_where_the_output_is_sensitive():
    """O = (0.25 x 8 + 0.75 x 4, 2) = (5, 2), zeta = 1 + 0.5 - O / 5 = (0.5, 1.1); of u = 0.5, 1 - zeta u."""
    weights, sensitivities = (
        {name: jnp.array(x) for name, x in tree.items()}
        for tree in ({"a": WEIGHTS, "b": WEIGHTS}, {"a": (8.0, 4.0), "b": (2.0, 2.0)})
    )
    u = {"a": jnp.float32(0.5), "b": jnp.float32(0.5)}
    residual, _ = algorithms.elastic().residual({"tau": 0.5}, (), u, Cohort(u, (), (), weights, sensitivities, N))
    assert [float(1 - u[name] + residual[name]) for name in "ab"] == near(0.75, 0.45)


def test_elastic_measures_the_gradient_of_the_squared_output():
    """f(x) = theta x with theta = 1 on x = 1, then 2: (d f^2)^2 = (2 x^2)^2 = 4, 64. Averages with mu = 0.5: 2, 33."""
    task = types.SimpleNamespace(predict=lambda params, stats, batch: params["x"] * batch)
    rows = jnp.array([[1.0], [2.0]])
    batch = lambda i: (rows[i], jnp.ones(1, bool))  # noqa: E731
    probe = Probe(task, Variables(one(THETA), {}), batch, jnp.int32(2), jnp.int32(0), local_training.counted)
    measured = algorithms.elastic().probe({"sensitivity_decay": jnp.float32(0.5)}, probe)
    assert float(measured["x"]) == near(33 / (1 - 0.5**2))


# --- the client's gradient, and its memory


def test_fedprox_pulls_towards_the_global_model():
    """g + mu (theta - theta_g) = 2 + 0.1 (0.8 - 1)."""
    assert corrected(algorithms.fedprox().correct, {"mu": 0.1}, Anchor(one(THETA), (), ())) == near(1.98)


def test_ditto_ties_the_personal_model_to_the_global_one():
    """g + lambda (v - theta_g) = 2 + 0.5 (0.8 - 1); the base's round is unchanged."""
    algorithm = algorithms.ditto(algorithms.fedavg())
    assert corrected(algorithm.personal, {"ditto_lam": 0.5}, Anchor(one(THETA), (), ())) == near(1.9)
    assert global_round(algorithm, {}, ())[0] == near(0.5)


def test_scaffold_corrects_by_control_variates():
    """c = 0.3, c_k = (0.1, -0.2). Client 1: g + c - c_1 = 2.2.

    c_k+ = c_k - c + delta_k / D_k = (0.1 - 0.3 + 2, -0.2 - 0.3 + 3) = (1.8, 2.5), that is messages 1.7 and 2.7;
    c + (1.7 + 2.7) / 4 = 1.4; theta = 1 - eta_g u = 1 - 0.5 x 0.5.
    """
    algorithm, memories = algorithms.scaffold(), (one(0.1), one(-0.2))
    assert corrected(algorithm.correct, {}, Anchor(one(THETA), one(0.3), memories[0])) == near(2.2)
    theta, c, own = global_round(algorithm, {"eta_g": 0.5}, one(0.3), memories)
    assert theta == near(0.75) and float(c["x"]) == near(1.4)
    assert [float(memory["x"]) for memory in own] == near(1.8, 2.5)


def test_feddyn_regularises_dynamically():
    """lambda = (0.1, -0.2), their mean over all N before: 0.05. Client 1: g + alpha (lambda + theta - theta_g) = 1.95.

    lambda_k+ = lambda_k - delta_k = (-0.1, -0.8); the mean becomes 0.05 - (0.2 + 0.6) / 4 = -0.15 = R. A clip at 1
    leaves the gradient 1.
    """
    algorithm, memories = algorithms.feddyn(), (one(0.1), one(-0.2))
    server = algorithm.init({}, one(0))[0]._replace(dual=one(0.05))
    for clip, expected in ((10.0, 1.95), (1.0, 1.0)):
        hyper = {"dyn_alpha": 0.5, "clip": clip}
        assert corrected(algorithm.correct, hyper, Anchor(one(THETA), server, memories[0])) == near(expected)
    theta, server, own = global_round(algorithm, hyper, server, memories)
    assert theta == near(1 - 0.5 - 0.15) and float(server.dual["x"]) == near(-0.15)
    assert [float(memory["x"]) for memory in own] == near(-0.1, -0.8)


# --- the client's loss


def loss_of(algorithm, hyper, own, of_global=None, of_client=None, y=0):
    """Returns the loss where the task's is 0.7, and a model is its outputs, which are its features too."""
    task = types.SimpleNamespace(
        forward=lambda params, stats, batch, mask, train, key=None: (Outputs(jnp.float32(0.7), params, params), stats)
    )
    models = [None if model is None else jnp.array(model, jnp.float32) for model in (own, of_global, of_client)]
    batch, mask = types.SimpleNamespace(y=jnp.full(len(own), y)), jnp.ones(len(own), bool)
    anchor = Anchor(models[1], (), models[2])
    return float(algorithm.loss(hyper, task, models[0], {}, batch, mask, None, anchor)[0])


def test_moon_keeps_features_near_the_global_and_away_from_the_previous_model():
    """Cosines (24/25, 0) over tau = 0.5: -log(e^1.92 / (e^1.92 + e^0)) = log(1 + e^-1.92), with mu = 2."""
    hyper = {"moon_mu": 2.0, "moon_tau": 0.5}
    loss = loss_of(algorithms.moon(), hyper, [[3, 4]], of_global=[[4, 3]], of_client=[[-4, 3]])
    assert loss == near(0.7 + 2 * math.log(1 + math.exp(-1.92)))


def test_fedntd_distils_the_classes_that_are_not_true():
    """Class 2 is true; without it q = (1, 3) / 4 and q_glob = (1, 1) / 2: KL = log(2) / 2 + log(2 / 3) / 2."""
    hyper = {"ntd_beta": 2.0, "ntd_tau": 1.0}
    loss = loss_of(algorithms.fedntd(), hyper, [[0, math.log(3), 5]], of_global=[[0, 0, 9]], y=2)
    assert loss == near(0.7 + 2 * math.log(4 / 3) / 2)


def test_feddecorr_penalises_the_correlation_of_features():
    """K = I of two uncorrelated features, ||K||^2 / d^2 = 2 / 4; of two equal ones K is all ones, 4 / 4."""
    uncorrelated, equal = [[1, 1], [1, -1], [-1, 1], [-1, -1]], [[1, 1], [-1, -1]]
    for features, penalty in ((uncorrelated, 0.5), (equal, 1.0)):
        assert loss_of(algorithms.feddecorr(), {"decorr_beta": 0.1}, features) == near(0.7 + 0.1 * penalty)


def test_every_algorithm_has_its_equation_here():
    for name in ALGORITHMS:
        with naming(name):
            assert any(test.startswith(f"test_{name}_") for test in globals())
