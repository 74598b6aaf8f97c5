"""Laws of the algorithms, on quadratics and on their functions alone."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import oracle, worlds

import fedvg_jax as fv
from fedvg_jax.core import tree
from fedvg_jax.core.types import Anchor, Cohort, Probe
from fedvg_jax.engine import local_training

every_algorithm = pytest.mark.parametrize("name", worlds.ON_QUADRATICS)
WORLD = worlds.uneven()
EVEN = worlds.quadratics(np.ones((5, 3)), np.random.default_rng(1).normal(size=(5, 3)), [4] * 5, 3)


def schedule_of(world, number, **changes):
    """Every second row is probed, where an algorithm has a probe."""
    return world.schedule(number, 2, probe_ratio=0.5, **changes)


def after(algorithm, rounds=1, weighting="samples", world=WORLD, **changes):
    """States after every round; `changes` are hyperparameters."""
    step = worlds.shared_round(algorithm)
    state = worlds.shared_state(world, algorithm, **changes)
    states = []
    for number in range(rounds):
        state, _ = step(
            state, schedule_of(world, number), world.data(), worlds.by_rule(weighting, **changes)
        )
        states.append(state)
    return states


def models(name, world=WORLD, **changes):
    """Global models after three rounds."""
    return [state.variables for state in after(worlds.algorithm(name), 3, world=world, **changes)]


# --- where an algorithm is FedAvg


@pytest.mark.parametrize(
    ("name", "world", "changes"),
    [
        ("fedprox", WORLD, {"fedprox.mu": 0.0}),
        ("fedavgm", WORLD, {"fedavgm.momentum": 0.0, "fedavgm.lr": 1.0}),
        ("fednova", EVEN, {}),
    ],
    ids=["fedprox", "fedavgm", "fednova with equal steps"],
)
def test_an_algorithm_equals_fedavg_where_its_change_is_neutral(x64, name, world, changes):
    worlds.assert_close(models(name, world, **changes), models("fedavg", world), 1e-12)


def tree_distance(a, b):
    return max(np.abs(leaf).max() for leaf in jax.tree.leaves(tree.sub(a, b)))


@pytest.mark.quick
def test_scaffold_first_round_equals_fedavg(x64):
    (first, second, _), expected = models("scaffold", **{"scaffold.eta_g": 1.0}), models("fedavg")
    worlds.assert_close(first, expected[0], 1e-12)
    assert tree_distance(second, expected[1]) > 1e-3


# --- adaptive servers


@pytest.mark.parametrize("name", oracle.PUBLISHED)
def test_a_published_adaptive_server_follows_algorithm_2_of_reddi_et_al_for_five_rounds(x64, name):
    """The oracle is that algorithm's box in NumPy, from v = 0. Updates are below, at and above tau, so that Yogi's v
    rises and falls. `test_oracle.py` has rounds of the paper's servers."""
    rng = np.random.default_rng(0)
    algorithm = worlds.algorithm(name, reference="adaptive-servers")
    rule = oracle.PUBLISHED[name]
    hyper = worlds.hyper()
    zero = {"a": np.zeros(4)}
    plain = {key: float(value) for key, value in hyper.items()}
    residual = worlds.jit(algorithm.residual)
    server = algorithm.init(hyper, zero)[0]
    expected_server = rule.init(plain, zero)[0]
    for i in (-1, 0, 1, 0, -2):
        update = {"a": 1e-3 * rng.normal(size=4) * 10.0**i}
        actual, server = residual(hyper, server, zero, Cohort(update, (), (), None, (), 1))
        cohort = oracle.Cohort(update, [], {}, [], [])
        expected, expected_server = rule.residual(plain, expected_server, zero, cohort)
        worlds.assert_close(actual, expected, 1e-12)


# --- what the published code does


def test_the_published_feddyn_omits_the_average_after_the_first_round(x64):
    """theta <- theta_g + mean lambda, for any models that the clients return; under FedVG's weights only."""
    algorithm = worlds.algorithm("feddyn", weighting="fedvg", reference="feddyn-average")
    states = after(algorithm, 3, "samples+fedvg")
    for before, now in itertools.pairwise(states):
        expected = tree.add(before.variables.params, now.server[0])
        worlds.assert_close(now.variables.params, expected, 1e-12)
    always = after(worlds.algorithm("feddyn"), 3, "samples+fedvg")
    worlds.assert_close(states[0].variables, always[0].variables, 1e-12)
    assert tree_distance(states[1].variables, always[1].variables) > 1e-3


def test_the_published_feddyn_has_no_quadratic_term_and_clips(x64):
    """g + alpha (lambda_k - theta_g), cut to a norm of 10: of (60, 80), to (6, 8)."""
    correct = worlds.algorithm("feddyn", reference="feddyn-regulariser").correct
    anchor = Anchor({"x": jnp.full(2, 2.0)}, None, {"x": jnp.full(2, 5.0)})
    hyper = worlds.hyper(**{"feddyn.alpha": 0.5, "feddyn.clip": 10.0})
    theta = {"x": jnp.full(2, 7.0)}
    for gradient, expected in (([0.5, -0.5], [2.0, 1.0]), ([58.5, 78.5], [6.0, 8.0])):
        corrected = correct(hyper, {"x": jnp.array(gradient)}, theta, anchor)
        np.testing.assert_allclose(corrected["x"], expected, rtol=1e-12)


def test_the_published_sensitivity_averages_the_squared_norms_of_summed_gradients(x64):
    """Of H equal batches with the gradient g of the loss, sum_i (1 - mu) mu^(H - i) ||i g||^2; no bias is corrected."""
    task = worlds.QUADRATIC
    model = worlds.QUADRATIC.init(None)
    data = worlds.quadratics(np.full((1, 3), 3.0), np.ones((1, 3)), [8], 1).data()
    batch = tree.gather(data.pool, jnp.arange(2, dtype=jnp.int32))
    steps = Probe(task, model, lambda i: batch, np.int32(3), jnp.int32(0), local_training.counted)
    measure = worlds.algorithm("elastic", reference="elastic-sensitivity").probe
    actual = measure(worlds.hyper(**{"elastic.mu": 0.5}), steps).params
    factor = sum(0.5 * 0.5 ** (3 - i) * i**2 for i in (1, 2, 3))
    expected = jax.tree.map(lambda x: factor * jnp.sum((3 * x - 1) ** 2), model.params)
    worlds.assert_close(actual, expected, 1e-12)


def test_the_published_sensitivity_is_relative_to_the_most_sensitive_client(x64):
    """zeta = 1 + 0.5 - (0.25 x 8 + 0.75 x 4) / 8 = 0.875 of u = 1."""
    residual = worlds.algorithm("elastic", reference="elastic-sensitivity").residual
    one = {"x": jnp.ones(())}
    cohort = Cohort(one, (), (), {"x": jnp.array([0.25, 0.75])}, {"x": jnp.array([8.0, 4.0])}, 2)
    rest, _ = residual(worlds.hyper(**{"elastic.tau": 0.5}), (), one, cohort)
    np.testing.assert_allclose(1 - rest["x"], 0.875, rtol=1e-12)


# --- convergence


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_control_variates_equal_a_constant_gradient_for_any_optimiser_and_number_of_steps(
    x64, momentum
):
    """Of the loss -b x the gradient is -b, which c_k is after a client's first round."""
    b = np.random.default_rng(0).normal(size=(5, 3))
    world = worlds.quadratics(np.zeros((5, 3)), b, [4, 8, 2, 6, 3], 3)
    state = after(worlds.algorithm("scaffold"), 1, world=world, momentum=momentum)[0]
    cohort = schedule_of(world, 0).clients
    expected = {"left": {"x": -b[cohort, :2]}, "right": {"x": -b[cohort, 2:]}}
    worlds.assert_close(jax.tree.map(lambda c: c[cohort], state.clients), expected, 1e-12)


# --- corners

CORNERS = {
    "no gradient": WORLD._replace(pool=jax.tree.map(np.zeros_like, WORLD.pool)),
    "nothing to score": WORLD._replace(scoring=np.full_like(WORLD.scoring, -1)),
    "a batch or none": worlds.quadratics(np.ones((5, 3)), np.ones((5, 3)), [0, 1, 2, 3, 2], 3),
}


@every_algorithm
def test_states_are_finite_with_zero_gradients_and_clients_with_one_batch_or_none(x64, name):
    """And every round is the same program."""
    algorithm = worlds.algorithm(name)
    step = worlds.shared_round(algorithm)
    counts = set()
    for corner, world in CORNERS.items():
        state = worlds.shared_state(world, algorithm)
        for number in range(2):
            state, metrics = step(
                state, schedule_of(world, number), world.data(), worlds.by_rule("samples+fedvg")
            )
            leaves = jax.tree.leaves((state, metrics))
            assert all(np.isfinite(leaf).all() for leaf in leaves), corner
            counts.add(step._cache_size())
    assert len(counts) == 1


# --- probes


def test_a_run_gives_probe_minibatches_to_any_algorithm_with_a_probe_and_to_no_other():
    """`elastic` as an object has the schedule of the setting; without probes its sensitivities are all 0."""

    def probe_steps(named, given):
        config = fv.Config(clients=4, weighting="uniform", algorithm=named)
        sim = fv.simulation(config, data=worlds.images(80), algorithm=given)
        return sim.schedule(0).probe_steps.tolist()

    by_name = probe_steps("elastic", None)
    assert min(by_name) > 0
    assert probe_steps("fedavg", fv.algorithms.elastic()) == by_name
    assert not any(probe_steps("elastic", fv.algorithms.fedavg()))


# --- ditto's personal models against the oracle, on every executor and placement; its global model is the base's


RAGGED = worlds.small()


plan_of = functools.partial(worlds.plan_with_dropouts, RAGGED)


def rounds(algorithm, plan, **options):
    """(state, metrics) after every round."""
    return worlds.play(RAGGED, plan, algorithm, "samples", worlds.TASK, **options)


# --- against the oracle


class TowardsGlobal(oracle.Algorithm):
    """A personal model's steps, where the server's state is theta_g."""

    def correct(self, hyper, gradients, params, theta, server, client):
        return oracle.each(
            lambda g, v, t: g + hyper["ditto.lam"] * (v - t), gradients, params, server
        )


def test_three_rounds_equal_the_oracle(x64):
    """In client chunks. The oracle's personal models start from their last ones, and move towards theta_g before the
    round."""
    hyper = {name: float(value) for name, value in worlds.hyper().items()}
    theta, stats = map(worlds.by_path, worlds.variables())
    models = [(theta, stats)] * len(RAGGED.train)
    plan = plan_of(client_chunk_size=2)
    played = rounds(fv.algorithms.ditto(worlds.algorithm("fedavg")), plan)
    of_oracle = worlds.rounds_of_oracle(RAGGED, plan, oracle.ALGORITHMS["ditto"])
    for schedule, (actual, _), (expected, _) in zip(plan, played, of_oracle, strict=True):
        for k in np.flatnonzero(schedule.participating):
            start = oracle.State(*models[schedule.clients[k]], theta, models)
            trained = oracle.train(start, schedule, k, RAGGED.pool, hyper, TowardsGlobal())
            models[schedule.clients[k]] = trained.params, trained.stats
        theta, *_ = expected
        params, stats = map(worlds.by_path, actual.variables)
        worlds.assert_close((params, stats), (expected.params, expected.stats), 1e-9)
        for client, model in enumerate(models):
            own = tree.take(actual.clients.local, client)
            worlds.assert_close(tuple(map(worlds.by_path, own)), model, 1e-9)


# --- laws


def clipped(hyper, round):
    return optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(hyper["lr"]))


def test_the_global_model_and_the_states_are_those_of_the_base(x64):
    """Also where a rule clips, which sees the gradients of one model. Personal models do not depend on the base in the
    first round."""
    fedavg, moon = map(worlds.algorithm, ("fedavg", "moon"))
    own = rounds(fv.algorithms.ditto(moon), plan_of(), optimiser=clipped)
    ((first, _),) = rounds(fv.algorithms.ditto(fedavg), plan_of(1), optimiser=clipped)
    worlds.assert_close(own[0][0].clients.local, first.clients.local, 1e-12)
    plain = rounds(moon, plan_of(), optimiser=clipped)
    for (state, metrics), expected in zip(own, plain, strict=True):
        actual = state._replace(clients=state.clients.algorithm), metrics
        worlds.assert_close(actual, expected, 1e-12)


# --- runs


def test_a_run_sends_the_global_model_only():
    settings = fv.Config(algorithm="ditto", clients=4, rounds=1, alpha=10.0)
    history = fv.run(settings, data=worlds.images(120))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(history.variables))
    assert history.records[0]["bytes_down"] == history.records[0]["bytes_up"] == 2 * size
