"""A round that visits its cohort in blocks is the round that holds it whole, in the memory of a block."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax
from fedvg_jax import compression, config
from fedvg_jax.core import groups, tree
from fedvg_jax.engine import attacks, differentiable, executors, federated_round, local_training, privacy
from fedvg_jax.models import mlp
from fedvg_jax.models import task as tasks
from fedvg_jax.runs.assemble import registry
from fedvg_jax.weightings import baselines, basic
from fedvg_jax.weightings.fedvg import NormParts, inverse_norms

TASK, K = worlds.QUADRATIC, 5
RULES = ("samples", "fedvg", "samples+fedvg", "inverse_samples", "uniform+val_loss")


@functools.cache
def world():
    """Six quadratics of 4 to 8 rows, one without a step; five play. The data of client 3 are not finite."""
    rng = np.random.default_rng(0)
    federation = worlds.quadratics(rng.uniform(0.5, 2, (6, 3)), rng.normal(size=(6, 3)), [4, 8, 2, 6, 1, 5], K)
    for leaf in jax.tree.leaves(federation.pool[1]):
        leaf[federation.train[3]] = np.nan
    return federation


def schedule_of(number, size=None, num_lanes=2):
    """One client drops out besides the one that diverges."""
    schedule = world().schedule(number, num_lanes, probe_ratio=0.5, block_size=size)
    return schedule._replace(heard=np.arange(K) != 3 * number)


def falls(count):
    """Norms whose right group is above the floor until the client of 8 rows."""
    return {"left": {"x": jnp.where(count == 8, 1e9, count)}, "right": {"x": 1 / (1 + count)}}


def rises(count):
    """Norms whose right group is above the floor from the client of 8 rows on."""
    return {"left": {"x": count}, "right": {"x": jnp.where(count == 8, 5.0, 1e-7 * (1 + count))}}


def crossing(norms_of):
    """Layerwise FedVG, of which a group crosses the floor between cohort blocks."""

    def signal(hyper, client, data):
        return norms_of(client.num_samples.astype(float))

    return inverse_norms(NormParts(signal, groups.layerwise, TASK.block_of))


def loss_above_0(*args):
    """The quadratics' loss plus 2; the weighting val_loss takes no negative losses."""
    loss, stats = TASK.loss(*args)
    return loss + 2, stats


ABOVE_0 = TASK._replace(loss=loss_above_0)


def menu(algorithm, rules):
    """All rules in one program, and the two that cross the floor."""
    named = [worlds.weighting(rule, algorithm, ABOVE_0) for rule in rules]
    return worlds.any_of([*named, crossing(falls), crossing(rises)])


def after_two_rounds(step, state, size, hyper):
    results = []
    for number in range(2):
        state, metrics = step(state, schedule_of(number, size), world().data(), hyper)
        results.append(metrics)
    return state, results


def assert_blocks_are_whole(algorithm, rules):
    optimiser = registry.make_optimiser(config.Config(momentum=0.5))
    hyper = worlds.hyper(momentum=0.5)
    step = worlds.make_round(world(), algorithm, menu(algorithm, rules), optimiser=optimiser)
    start = worlds.state(world(), algorithm, TASK)
    for number in range(len(rules) + 2):
        hyper |= {"rule": jnp.int32(number)}
        expected = after_two_rounds(step, start, None, hyper)
        assert expected[1][0].finite.sum() == K - 1  # one diverged, one dropped out
        assert (expected[1][0].weights > 0).sum() >= 2
        worlds.assert_close(after_two_rounds(step, start, 2, hyper), expected, 1e-9)


def test_cohort_blocks_equal_the_whole_cohort(x64):
    """Of an algorithm that remembers, probes, and sends both kinds of messages, under weights of two terms."""
    assert_blocks_are_whole(worlds.full_algorithm(), ())


@pytest.mark.slow
@pytest.mark.parametrize("name", worlds.ON_QUADRATICS)
def test_cohort_blocks_equal_the_whole_cohort_for_every_algorithm_and_rule(x64, name):
    assert_blocks_are_whole(worlds.algorithm(name), RULES)


def test_cohort_blocks_on_devices_equal_the_whole_cohort_with_running_statistics(x64):
    """Corrupt clients return noise of their own in both, updates are rounded and clipped, and the round has its noise
    once; FedVG by tensor leaves statistics uniform weights."""
    net, task, algorithm = world(), worlds.STATISTIC, worlds.algorithm("feddyn")
    rule = worlds.weighting("fedvg", algorithm, task, granularity="layerwise", norm="delta")
    options = {"disturb": attacks.disturbance(attacks.noise, np.array([0, 2]), 6), "stats_too": True}
    options["private"], algorithm = privacy.tensorwise, algorithm._replace(send=compression.qsgd(2))

    def after(executor, size):
        plan = [net.schedule(2, executor.num_lanes, block_size=size)]  # clients 1 and 5 are sound, 3 diverges
        values = worlds.hyper(attack_scale=0.5, dp_clip=0.3, dp_noise=0.4)
        return worlds.play(net, plan, algorithm, rule, task, values, executor=executor, **options)

    worlds.assert_close(after(executors.sharded(2, 1), 2), after(executors.lanes(1), None), 1e-9)


@pytest.mark.slow
def test_gradients_through_cohort_blocks_equal_those_through_the_whole_cohort(x64):
    net, algorithm = worlds.uneven(cohort_size=5), worlds.algorithm("scaffold")
    executor = differentiable.unrolled(net.most_steps())
    rule = worlds.weighting("samples+fedvg", algorithm)
    step = federated_round.make_round(TASK, algorithm, rule, executor, local_training.sgd, 5)

    start, data = worlds.state(net, algorithm, TASK), net.data()

    def total(hyper, plan):
        state, _ = step(start, plan, data, hyper)
        return sum(leaf.sum() for leaf in jax.tree.leaves(state.variables))

    whole, cut = (worlds.jit(jax.grad(total))(worlds.hyper(), net.schedule(0, block_size=size)) for size in (None, 2))
    worlds.assert_close(cut, whole, 1e-9)


# --- memory


def scratch(cohort, size, algorithm="fedavg"):
    """Bytes of scratch of a compiled round on a network of 1e6 parameters, in models."""
    image = (40, 40, 3)
    task = tasks.classification(mlp.MLP(10), 10, image)
    net = worlds.world([4] * 100, batch_size=4, cohort_size=cohort, local_epochs=1)
    net = net._replace(pool=fedvg_jax.Batch(np.zeros((len(net.pool.y), *image), np.uint8), net.pool.y))
    algorithm, hyper = worlds.algorithm(algorithm), worlds.hyper()
    rule = worlds.weighting("fedvg", algorithm, task, 4)
    step = federated_round.make_round(task, algorithm, rule, executors.lanes(1), local_training.sgd, 100)
    state = jax.eval_shape(lambda: federated_round.init_state(task, algorithm, 100, hyper))
    plan = net.schedule(0, capacity=100, block_size=size)
    compiled = worlds.jit(step).lower(state, plan, net.data(), hyper).compile()
    return compiled.memory_analysis().temp_size_in_bytes / (4 * tree.size(state.variables))


def test_memory_depends_on_the_block_and_not_on_the_cohort():
    """A block of five takes two models a client, and a few more; a cohort of a hundred would take two hundred."""
    ten, hundred = scratch(10, 5), scratch(100, 5)
    assert hundred == pytest.approx(ten, rel=0.1)
    assert 5 < ten < 20


@pytest.mark.parametrize("name", config.WEIGHTINGS)
def test_streamable_names_are_the_rules_with_terms(name):
    rule = worlds.weighting(name, worlds.algorithm("fedavg"))
    assert bool(rule.terms) == config.streams(name)
    assert bool(basic.mix(basic.samples(), rule).terms) == config.streams(f"samples+{name}")
    assert not baselines.permuted(rule).terms


# --- runs


@pytest.mark.parametrize(("cohort", "hold", "size"), [(10, 0, 10), (10, 99, 10), (10, 4, 4), (11, 10, 6), (10, 1, 1)])
def test_cohort_blocks_are_as_few_and_as_even_as_possible(cohort, hold, size):
    assert config.block_size(config.Config(clients=cohort, join_ratio=1.0, hold=hold)) == size
