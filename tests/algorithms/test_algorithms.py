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
from fedvg_jax import config, resolve
from fedvg_jax.algorithms import no_correction, no_probe, no_state
from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Anchor, Cohort, Hyperparameter, Probe, Variables
from fedvg_jax.engine import local_training

every_algorithm = pytest.mark.parametrize("name", worlds.ON_QUADRATICS)
WORLD = worlds.uneven()
EVEN = worlds.quadratics(np.ones((5, 3)), np.random.default_rng(1).normal(size=(5, 3)), [4] * 5, 3)


def schedule_of(world, number, **changes):
    """Every second row is probed, where an algorithm has a probe."""
    return world.schedule(number, 2, probe_ratio=0.5, **changes)


def after(algorithm, rounds=1, weighting="samples", world=WORLD, **changes):
    """States after every round; `changes` are hyperparameters."""
    step, state, states = (
        worlds.shared_round(algorithm),
        worlds.shared_state(world, algorithm, **changes),
        [],
    )
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
    return max(
        float(np.abs(x - y).max())
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


@pytest.mark.quick
def test_scaffold_first_round_equals_fedavg(x64):
    (first, second, _), expected = models("scaffold", **{"scaffold.eta_g": 1.0}), models("fedavg")
    worlds.assert_close(first, expected[0], 1e-12)
    assert tree_distance(second, expected[1]) > 1e-3


# --- Elastic


def probe_of(world, num_batches, params):
    """The probe of a client with the rows of the pool in order, in batches of 2."""
    rows = jnp.arange(2 * max(num_batches, 1), dtype=jnp.int32).reshape(-1, 2)
    pool = jax.tree.map(jnp.asarray, world.pool)
    count = np.int32(num_batches)
    batch = lambda i: tree.gather(pool, rows[i])  # noqa: E731
    return Probe(
        worlds.QUADRATIC, Variables(params, {}), batch, count, jnp.int32(0), local_training.counted
    )


# --- adaptive servers


@pytest.mark.parametrize("name", oracle.PUBLISHED)
def test_a_published_adaptive_server_follows_algorithm_2_of_reddi_et_al_for_five_rounds(x64, name):
    """The oracle is that algorithm's box in NumPy, from v = 0. Updates are below, at and above tau, so that Yogi's v
    rises and falls. `test_oracle.py` has rounds of the paper's servers."""
    rng = np.random.default_rng(0)
    algorithm, rule = worlds.algorithm(name, reference="adaptive-servers"), oracle.PUBLISHED[name]
    hyper, zero = worlds.hyper(), {"a": np.zeros(4)}
    plain, residual = (
        {key: float(value) for key, value in hyper.items()},
        worlds.jit(algorithm.residual),
    )
    server, expected_server = algorithm.init(hyper, zero)[0], rule.init(plain, zero)[0]
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
        worlds.assert_close(
            now.variables.params, tree.add(before.variables.params, now.server[0]), 1e-12
        )
    always = after(worlds.algorithm("feddyn"), 3, "samples+fedvg")
    worlds.assert_close(states[0].variables, always[0].variables, 1e-12)
    assert tree_distance(states[1].variables, always[1].variables) > 1e-3


def test_the_published_feddyn_has_no_quadratic_term_and_clips(x64):
    """g + alpha (lambda_k - theta_g), cut to a norm of 10: of (60, 80), to (6, 8)."""
    correct = worlds.algorithm("feddyn", reference="feddyn-regulariser").correct
    anchor = Anchor({"x": jnp.full(2, 2.0)}, None, {"x": jnp.full(2, 5.0)})
    hyper, theta = (
        worlds.hyper(**{"feddyn.alpha": 0.5, "feddyn.clip": 10.0}),
        {"x": jnp.full(2, 7.0)},
    )
    for gradient, expected in (([0.5, -0.5], [2.0, 1.0]), ([58.5, 78.5], [6.0, 8.0])):
        worlds.assert_close(
            correct(hyper, {"x": jnp.array(gradient)}, theta, anchor),
            {"x": np.array(expected)},
            1e-12,
        )


def test_the_published_sensitivity_averages_the_squared_norms_of_summed_gradients(x64):
    """Of H equal batches with the gradient g of the loss, sum_i (1 - mu) mu^(H - i) ||i g||^2; no bias is corrected."""
    params, mu, num_batches = worlds.QUADRATIC.init(None).params, 0.5, 3
    world = worlds.quadratics(np.full((1, 3), 3.0), np.ones((1, 3)), [8], 1)
    probe = worlds.algorithm("elastic", reference="elastic-sensitivity").probe
    actual = probe(worlds.hyper(**{"elastic.mu": mu}), probe_of(world, num_batches, params)).params
    factor = sum((1 - mu) * mu ** (num_batches - i) * i**2 for i in range(1, num_batches + 1))
    worlds.assert_close(
        actual, jax.tree.map(lambda x: factor * np.sum((3 * np.asarray(x) - 1) ** 2), params), 1e-12
    )


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
    state, cohort = (
        after(worlds.algorithm("scaffold"), 1, world=world, momentum=momentum)[0],
        schedule_of(world, 0).clients,
    )
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
    step, counts = worlds.shared_round(algorithm), set()
    for corner, world in CORNERS.items():
        state = worlds.shared_state(world, algorithm)
        for number in range(2):
            state, metrics = step(
                state, schedule_of(world, number), world.data(), worlds.by_rule("samples+fedvg")
            )
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state, metrics))), (
                corner,
                number,
            )
            counts.add(step._cache_size())
    assert len(counts) == 1


# --- an algorithm in a user's file: FedExP with a hyperparameter of its own


def fedexp():
    """FedExP, Eq. (5) of Jhunjhunwala et al., ICLR 2023: eta_g = max(1, mean ||delta_k||^2 / (2 (||u||^2 + eps)))."""

    def report(hyper, params, anchor, displacement):
        squares = jax.tree.map(
            lambda start, end: jnp.sum((start - end) ** 2), anchor.params, params
        )
        return anchor.client, (), squares

    def residual(hyper, server, params, cohort):
        squared = sum(jax.tree.leaves(cohort.averaged))
        rate = jnp.maximum(1, squared / (2 * (optax.tree.norm(cohort.update) ** 2 + hyper["eps"])))
        return jax.tree.map(lambda u: (1 - rate) * u, cohort.update), server

    eps = Hyperparameter("eps", 1e-3, low=0.0, doc="added to the squared norm of the mean update")
    return Algorithm(no_state, no_correction, report, residual, no_probe, "uniform", (eps,))


FEDEXP = fedexp()


def test_a_run_gives_probe_minibatches_to_any_algorithm_with_a_probe_and_to_no_other():
    """`elastic` as an object has the schedule of the setting; without probes its sensitivities are all 0."""

    def probe_steps(named, given):
        config = fv.Config(
            clients=4, rounds=1, local_epochs=1, weighting="uniform", algorithm=named
        )
        return (
            resolve.experiment.simulation(config, data=worlds.images(80), algorithm=given)
            .schedule(0)
            .probe_steps.tolist()
        )

    by_name = probe_steps("elastic", None)
    assert min(by_name) > 0
    assert probe_steps("fedavg", fv.algorithms.elastic()) == by_name
    assert not any(probe_steps("elastic", fv.algorithms.fedavg()))


# --- ditto's personal models against the oracle, on every executor and placement; its global model is the base's


RAGGED = worlds.small()


plan_of = functools.partial(worlds.plan_with_dropouts, RAGGED)


def rounds(base="fedavg", plan=None, own=True, values=None, **options):
    """(state, metrics) after every round; without personal models unless `own`."""
    algorithm, plan = worlds.algorithm(base), plan or plan_of()
    rule = worlds.weighting("samples", algorithm, worlds.TASK, RAGGED.batch_size)
    algorithm = ditto_of(algorithm) if own else algorithm
    return worlds.play(RAGGED, plan, algorithm, rule, worlds.TASK, values, **options)


ditto_of = functools.cache(fv.algorithms.ditto)


@functools.cache
def of_fedavg():
    """In client chunks; all others here hold the whole cohort."""
    return rounds(plan=plan_of(client_chunk_size=2))


# --- against the oracle


class TowardsGlobal(oracle.Algorithm):
    """A personal model's steps, where the server's state is theta_g."""

    def correct(self, hyper, gradients, params, theta, server, client):
        return oracle.each(
            lambda g, v, t: g + hyper["ditto.lam"] * (v - t), gradients, params, server
        )


def oracles_personal_models(params, stats, theta_of_round):
    """The personal models of all clients after each round, from theta_g before it."""
    hyper = {name: float(value) for name, value in worlds.hyper().items()}
    models, by_round = [(params, stats)] * len(RAGGED.train), []
    for schedule, theta in zip(plan_of(), theta_of_round, strict=True):
        for k in np.flatnonzero(schedule.participating):
            start = oracle.State(*models[schedule.clients[k]], theta, models)
            trained = oracle.train(start, schedule, k, RAGGED.pool, hyper, TowardsGlobal())
            models[schedule.clients[k]] = trained.params, trained.stats
        by_round.append(list(models))
    return by_round


def test_three_rounds_equal_the_oracle(x64):
    states = [
        state for state, _ in worlds.rounds_of_oracle(RAGGED, plan_of(), oracle.ALGORITHMS["ditto"])
    ]
    start = tuple(map(worlds.by_path, worlds.variables()))
    expected = oracles_personal_models(*start, [start[0], *(state.params for state in states[:-1])])
    for (actual, _), state, models in zip(of_fedavg(), states, expected, strict=True):
        worlds.assert_close(
            tuple(map(worlds.by_path, actual.variables)), (state.params, state.stats), 1e-9
        )
        for client, model in enumerate(models):
            own = tree.take(actual.clients.local, client)
            worlds.assert_close(tuple(map(worlds.by_path, own)), model, 1e-9)


# --- laws


def clipped(hyper, round):
    return optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(hyper["lr"]))


def test_the_global_model_and_the_states_are_those_of_the_base(x64):
    """Also where a rule clips, which sees the gradients of one model. Personal models do not depend on the base in the
    first round."""
    own = rounds("moon", optimiser=clipped)
    ((first, _),) = rounds(plan=plan_of(1), optimiser=clipped)
    worlds.assert_close(own[0][0].clients.local, first.clients.local, 1e-12)
    for (state, metrics), (expected, plain) in zip(
        own, rounds("moon", own=False, optimiser=clipped), strict=True
    ):
        worlds.assert_close(state._replace(clients=state.clients.algorithm), expected, 1e-12)
        worlds.assert_close(metrics, plain, 1e-12)


# --- runs


def test_a_run_sends_the_global_model_only():
    settings = config.Config(
        algorithm="ditto", clients=4, rounds=1, local_epochs=1, lanes="1", alpha=10.0
    )
    history = fv.run(settings, data=worlds.images(120))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(history.variables))
    assert history.records[0]["bytes_down"] == history.records[0]["bytes_up"] == 2 * size
