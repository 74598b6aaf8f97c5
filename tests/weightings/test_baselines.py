"""The rules FedVG is measured against, the other signals, and the grammar that names them."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import config
from fedvg_jax.config.weighting_grammar import Mean, Permuted, parse_weighting
from fedvg_jax.core import norms, tree
from fedvg_jax.core.types import Data, Report, Returns, Task, UsageError, Variables
from fedvg_jax.engine import evaluate
from fedvg_jax.runs import registry
from fedvg_jax.weightings import baselines, basic, signals
from fedvg_jax.weightings.aggregation import aggregate

K = 4
WORLD = worlds.small()
NAMES = ("inverse_samples", "val_loss", "val_accuracy", "fltrust", "fitted")
ALL = (*NAMES, "permuted(fedvg)", "fedvg")
SAMPLES = np.array([3, 11, 0, 6])
SHUFFLE = np.array([2, 0, 3, 1])


def make(name, **options):
    settings = replace(config.Config(), weighting=name, fedvg=config.FedVG(**options))
    return registry.make_weighting(settings, worlds.TASK, worlds.algorithm("fedavg"))


def clients_of(seeds):
    """Stacked models, each at a different distance from the global one."""
    model = worlds.variables()
    moved = [jax.tree.map(lambda x, y: x + 0.4 * (y - x), model, worlds.variables(10 + seed)) for seed in seeds]
    return jax.tree.map(lambda *x: jnp.stack(x), *moved)


def returned(seeds=range(K), samples=SAMPLES, present=True, clients=None):
    clients = clients_of(seeds) if clients is None else clients
    model = worlds.variables()
    deltas = jax.tree.map(lambda p, c: p[None] - c, model.params, clients.params)
    reports = Report(clients, jnp.asarray(samples, jnp.int32), deltas)
    present = jnp.broadcast_to(jnp.asarray(present), (K,))
    return reports, Returns(model, clients, jnp.asarray(SHUFFLE), WORLD.data(), present)


@worlds.jit
def all_weights(reports, returns):
    """All weightings in one program: name -> (weights [K], score [K])."""

    def one(name):
        rule = make(name)
        measured = jax.vmap(lambda report: rule.signal(worlds.hyper(), report, returns.data))(reports)
        weights = rule.weigh(worlds.hyper(), measured, returns)
        return weights, rule.score(measured)

    return {name: one(name) for name in ALL}


def weights_of(*args, **kwargs):
    """Name -> [K]; these weightings have one weight for all tensors."""
    by_rule = all_weights(*returned(*args, **kwargs))
    for weights, _ in by_rule.values():
        for leaf in jax.tree.leaves(weights):
            np.testing.assert_array_equal(leaf, jax.tree.leaves(weights)[0])
    return {name: np.asarray(jax.tree.leaves(weights)[0]) for name, (weights, _) in by_rule.items()}


@worlds.jit
def loss_of_average(returns, weights):
    """Returns the loss on D_val of the clients' average under `weights`."""
    variables = aggregate(returns.variables, returns.clients, weights)
    report = Report(variables, jnp.int32(1), variables.params)
    return signals.validation_loss(worlds.TASK)({}, report, returns.data)


# --- laws


def test_weights_are_a_distribution_and_not_uniform(x64):
    for name, weights in weights_of().items():
        assert (weights >= 0).all() and np.ptp(weights) > 0.01, name
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)


def test_permuting_the_clients_permutes_the_weights(x64):
    order = np.array([3, 0, 2, 1])
    before, after = weights_of(), weights_of(order, SAMPLES[order])
    for name in NAMES:
        np.testing.assert_allclose(after[name], before[name][order], rtol=1e-9, err_msg=name)


def test_equal_clients_have_equal_weights(x64):
    for name, weights in weights_of(K * [1], K * [5]).items():
        np.testing.assert_allclose(weights, np.full(K, 1 / K), rtol=1e-9, err_msg=name)


def test_absent_clients_have_weight_zero_and_the_others_keep_their_ratios(x64):
    present = np.array([True, False, True, True])
    before, after = weights_of(), weights_of(present=present)
    for name in ALL:
        assert after[name][1] == 0
        np.testing.assert_allclose(after[name].sum(), 1, rtol=1e-12)
    for name in ("inverse_samples", "val_loss", "val_accuracy", "fltrust", "fedvg"):
        kept = np.where(present, before[name], 0)
        np.testing.assert_allclose(after[name], kept / kept.sum(), rtol=1e-9, err_msg=name)


def test_clients_with_zero_updates_have_finite_weights(x64):
    still = tree.repeat(worlds.variables(), K)
    for weights in weights_of(samples=K * [0], clients=still).values():
        np.testing.assert_allclose(weights, np.full(K, 1 / K), rtol=1e-5)


# --- each rule


def test_the_permuted_control_assigns_the_same_weights_to_other_clients(x64):
    weights = weights_of()
    np.testing.assert_array_equal(weights["permuted(fedvg)"], weights["fedvg"][SHUFFLE])


def test_the_permuted_control_shuffles_among_present_clients(x64):
    weights = weights_of(present=np.array([True, True, False, True]))
    placebo, rule = weights["permuted(fedvg)"], weights["fedvg"]
    assert sorted(placebo) == sorted(rule) and placebo[2] == 0 and (placebo != rule).any()


def test_inverse_samples_weights_are_proportional_to_one_over_the_rows_and_zero_without_rows(x64):
    raw = np.array([1 / 3, 1 / 11, 0, 1 / 6])
    np.testing.assert_allclose(weights_of()["inverse_samples"], raw / raw.sum(), rtol=1e-12)


def test_validation_loss_and_accuracy_equal_those_of_the_evaluation(x64):
    reports, returns = returned()
    program = worlds.jit(evaluate.make_evaluate(worlds.TASK))
    sums = [program(tree.take(returns.clients, k), returns.data.pool, returns.data.val) for k in range(K)]
    metrics = [worlds.TASK.metrics(jax.device_get(s)) for s in sums]
    loss, accuracy = (np.array([m[name] for m in metrics]) for name in ("loss", "accuracy"))
    results = all_weights(reports, returns)
    np.testing.assert_allclose(results["val_loss"][1], loss, rtol=1e-12)
    np.testing.assert_allclose(results["val_accuracy"][1], accuracy, rtol=1e-12)
    inverse = 1 / (loss + worlds.HYPER["eps"])
    np.testing.assert_allclose(weights_of()["val_loss"], inverse / inverse.sum(), rtol=1e-12)
    np.testing.assert_allclose(weights_of()["val_accuracy"], accuracy / accuracy.sum(), rtol=1e-12)


def flat(stacked):
    return np.concatenate([np.asarray(x).reshape(K, -1) for x in jax.tree.leaves(stacked)], 1)


def test_fltrust_weighs_by_the_cosine_with_the_server_s_own_update_over_the_length(x64):
    """The server trains on the 10 rows in batches of 4, 4 and 2; the fourth group is empty."""
    reports, returns = returned()
    model, lr = returns.variables, worlds.HYPER["lr"]
    params, stats = model

    @worlds.jit
    def step(params, stats, rows):
        batch, mask = tree.gather(returns.data.pool, rows)
        grads, stats = jax.grad(worlds.TASK.loss, has_aux=True)(params, stats, batch, mask, True)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), stats

    for rows in WORLD.scoring[:3]:
        params, stats = step(params, stats, jnp.asarray(rows))
    own = np.concatenate([np.asarray(x).reshape(-1) for x in jax.tree.leaves(tree.sub(model.params, params))])
    deltas = flat(reports.delta)
    lengths = np.linalg.norm(deltas, axis=1)
    trust = np.maximum(deltas @ own / lengths / np.linalg.norm(own), 0)
    actual = weights_of()["fltrust"]
    np.testing.assert_allclose(actual, trust / lengths / (trust / lengths).sum(), rtol=1e-9)

    published = (trust / trust.sum() * np.linalg.norm(own) / lengths) @ deltas
    ours = actual @ deltas
    cosine = published @ ours / np.linalg.norm(published) / np.linalg.norm(ours)
    np.testing.assert_allclose(cosine, 1, rtol=1e-12)


def test_fltrust_shortens_long_updates_and_gives_opposed_updates_weight_zero(x64):
    """Client 0 sends ten times its update: what it contributes, s_k delta_k, does not grow against the others'."""
    model, clients = worlds.variables(), clients_of(range(K))
    before = weights_of()["fltrust"]
    trusted = int(np.argmax(before))

    def sent(factor):
        moved = jax.tree.map(lambda p, c: c.at[trusted].set(p + factor * (c[trusted] - p)), model, clients)
        return weights_of(clients=moved)["fltrust"]

    scaled, others = sent(10), np.arange(K) != trusted
    np.testing.assert_allclose(10 * scaled[trusted] / scaled[others].sum(), before[trusted] / before[others].sum())
    assert sent(-1)[trusted] == 0


@worlds.jit
def fitted_weights(returns):
    """Returns the weights after 0, 1, 5 and 20 steps of fitting."""
    rules = [basic.uniform(), *(baselines.fitted(worlds.TASK, num_steps, rate=0.5) for num_steps in (1, 5, 20))]
    return [rule.weigh({}, jnp.ones(K), returns) for rule in rules]


def test_fitted_weights_lower_the_loss_of_the_average(x64):
    _, returns = returned()
    losses = [float(loss_of_average(returns, weights)) for weights in fitted_weights(returns)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.001


def test_a_step_of_fitting_multiplies_by_the_exponential_of_the_gradient(x64):
    """The gradient by central differences of the loss, running statistics averaged too."""
    _, returns = returned()

    def loss(s):
        weights = jax.tree.map(lambda _: jnp.asarray(s), returns.variables)
        return float(loss_of_average(returns, weights))

    start, step = np.full(K, 1 / K), 1e-5 * np.eye(K)
    slope = np.array([(loss(start + e) - loss(start - e)) / 2e-5 for e in step])
    expected = np.exp(-0.5 * slope) / np.exp(-0.5 * slope).sum()
    np.testing.assert_allclose(jax.tree.leaves(fitted_weights(returns)[1])[0], expected, rtol=1e-8)


# --- signals


def test_fisher_is_the_mean_over_examples_of_squared_gradients(x64):
    reports, returns = returned()
    report, data = tree.take(reports, 0), returns.data

    @jax.vmap
    def squared(row):
        grads = jax.grad(worlds.TASK.loss, has_aux=True)
        gradients, _ = grads(*report.variables, *tree.gather(data.pool, row[None]), False)
        return jax.tree.map(jnp.square, gradients)

    rules = [signals.fisher(worlds.TASK, most) for most in (1, 200, 2**26)]
    rows = jnp.asarray(WORLD.val)
    squares, actual = worlds.jit(lambda: (squared(rows), [rule({}, report, data) for rule in rules]))()
    expected = jax.tree.map(lambda x: x.mean(0), squares)
    for of_rule in actual:
        worlds.assert_close(of_rule, expected, 1e-12)


def contradiction():
    """Logistic regression on two copies of x = (3, 4) with labels 0 and 1."""

    def loss(params, stats, batch, mask, train):
        x, y = batch
        z = x @ params["w"]
        losses = jnp.where(mask, jax.nn.softplus(z) - y * z, 0)
        return losses.sum() / jnp.maximum(mask.sum(), 1).astype(z.dtype), stats

    variables = Variables({"w": jnp.zeros(2)}, {})
    task = Task(lambda key: variables, loss, None, None, None, lambda path: path)
    rows = jnp.array([[0, 1]])
    pool = (jnp.array([[3.0, 4.0], [3.0, 4.0]]), jnp.array([0.0, 1.0]))
    return task, Report(variables, jnp.int32(2), variables.params), Data(pool, rows, rows, rows)


def test_two_opposite_labels_have_zero_mean_gradient_and_a_positive_fisher_trace(x64):
    """At w = 0, p = 1/2: gradients (p - y) x = +-x / 2, of mean 0; their squares sum to p (1 - p) |x|^2 = 25 / 4."""
    task, report, data = contradiction()
    gradient = signals.normed(signals.validation_gradient(task, False, 1), norms.l1)
    trace = signals.normed(signals.fisher(task), norms.l1)
    actual = worlds.jit(lambda: (gradient({}, report, data), trace({}, report, data)))()
    assert actual[0] == {"w": 0}
    np.testing.assert_allclose(actual[1]["w"], 25 / 4, rtol=1e-12)


def test_delta_is_the_l1_norm_of_the_client_s_update(x64):
    """Whether it is named as the norm, as the signal, or as both."""
    reports, returns = returned()
    rules = [make("fedvg", **o) for o in ({"norm": "delta"}, {"signal": "delta"}, {"norm": "delta", "signal": "delta"})]

    def measured_and_weights(rule):
        measured = jax.vmap(lambda report: rule.signal({}, report, returns.data))(reports)
        return measured, rule.weigh(worlds.hyper(), measured, returns)

    model = returns.variables.params
    expected = jax.tree.map(lambda p, c: np.abs(p[None] - c).reshape(K, -1).sum(1), model, returns.clients.params)
    raw = 1 / (np.mean(jax.tree.leaves(expected), 0) + worlds.HYPER["eps"])
    for measured, weights in worlds.jit(lambda: [measured_and_weights(rule) for rule in rules])():
        worlds.assert_close(measured, expected, 1e-12)
        np.testing.assert_allclose(weights.params["fc1"]["kernel"], raw / raw.sum(), rtol=1e-12)


@pytest.mark.parametrize("signal", config.SETTINGS["fedvg.signal"].names)
@pytest.mark.parametrize("norm", ["l1", "l2", "spectral", "spectral_l2"])
def test_every_signal_goes_with_every_norm(signal, norm):
    rule = make("fedvg", signal=signal, norm=norm)
    reports, returns = returned()
    shapes = jax.eval_shape(lambda report: rule.signal(worlds.hyper(), report, returns.data), tree.take(reports, 0))
    assert jax.tree.structure(shapes) == jax.tree.structure(returns.variables.params)
    assert all(leaf.shape == () for leaf in jax.tree.leaves(shapes))


# --- the grammar


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fedvg", "fedvg"),
        ("samples+fedvg", Mean("samples", "fedvg")),
        ("permuted(fedvg)", Permuted("fedvg")),
        ("permuted(samples+fedvg)", Permuted(Mean("samples", "fedvg"))),
        ("permuted(fedvg)+samples", Mean(Permuted("fedvg"), "samples")),
        ("samples+permuted(fedvg+native)", Mean("samples", Permuted(Mean("fedvg", "native")))),
    ],
)
def test_a_weighting_is_a_name_a_permutation_or_the_mean_of_two(text, rule):
    assert parse_weighting(text) == rule
    assert make(text).weigh


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fltrst", "did you mean 'fltrust'"),
        ("samples+fedgv", "did you mean 'fedvg'"),
        ("permuted(fedgv)", "unknown weighting 'fedgv'"),
        ("permuted", r"did you mean 'permuted\(NAME\)'"),
        ("permuted(fedvg", "unknown weighting"),
        ("a+b+c", "one rule or the mean of two"),
        ("samples+", "unknown weighting ''"),
    ],
)
def test_an_unknown_weighting_is_reported(text, message):
    with pytest.raises(UsageError, match=message):
        config.check(replace(config.Config(), weighting=text))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "("}, "not a regular expression"),
        ({"norm": "delta", "signal": "fisher"}, "got signal fisher"),
        ({"signal": "nosuch"}, "unknown fedvg.signal"),
        ({"layer": "nosuch"}, "unknown fedvg.layer"),
        ({"stats": "nosuch"}, "unknown fedvg.stats"),
        ({"fit_steps": 0}, "fedvg.fit_steps must be >= 1"),
        ({"fit_rate": math.inf}, "fedvg.fit_rate must be > 0"),
    ],
    ids=str,
)
def test_contradictory_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        config.check(replace(config.Config(), fedvg=config.FedVG(**options)))
