"""A round that visits its cohort in blocks is the round that holds it whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from fedvg_jax import build, groups, local, tree, weighting

TASK, K = worlds.QUADRATIC, 5
RULES = ("samples", "fedvg", "samples+fedvg", "inverse_samples", "uniform+val_loss")


@functools.cache
def world():
    """Six quadratics of 4 to 8 rows, one without a step; five play. The data of client 3 are not finite."""
    rng = np.random.default_rng(0)
    made = worlds.quadratics(rng.uniform(0.5, 2, (6, 3)), rng.normal(size=(6, 3)), [4, 8, 2, 6, 1, 5], K)
    for leaf in jax.tree.leaves(made.pool[1]):
        leaf[made.train[3]] = np.nan
    return made


def schedule_of(number, size=None):
    """One client drops out besides the one that diverges."""
    made = world().schedule(number, 2, probe_ratio=0.5, block_size=size)
    return made._replace(heard=np.arange(K) != 4 - number)


def crossing():
    """FedVG layerwise, where a group is above the floor until the client of 8 rows is seen."""

    def signal(hyper, report, data):
        count = report.num_samples.astype(float)
        loud, quiet = jnp.where(count == 8, 1e9, count), 1 / (1 + count)
        return {"left": {"x": loud}, "right": {"x": quiet}}

    return weighting.fedvg(signal, groups.layerwise, TASK.block_of)


def menu(algorithm):
    """All rules in one program."""
    return worlds.any_of([*(worlds.weighting(rule, algorithm) for rule in RULES), crossing()])


def after_two_rounds(step, state, size, hyper):
    told = []
    for number in range(2):
        state, metrics = step(state, schedule_of(number, size), world().data(), hyper)
        told.append(metrics)
    return state, told


def assert_streams(algorithm, sizes, optimiser=local.sgd, kept=None, **options):
    step = worlds.make_round(world(), algorithm, menu(algorithm), optimiser=optimiser, **options)
    start = worlds.state(world(), algorithm, TASK, options.get("stats_too", False))
    start = start._replace(optimisers=tree.repeat(kept, 6)) if kept is not None else start
    for number in range(len(RULES) + 1):
        hyper = worlds.hyper() | {"rule": jnp.int32(number)}
        expected = after_two_rounds(step, start, None, hyper)
        assert expected[1][0].finite.sum() == K - 1
        for size in sizes:
            worlds.assert_close(after_two_rounds(step, start, size, hyper), expected, 1e-9)


@pytest.mark.parametrize("name", [*build.ALGORITHMS])
def test_blocks_of_three_are_the_whole_cohort_for_every_algorithm_and_rule(x64, name):
    assert_streams(worlds.algorithm(name), [3])


def test_blocks_of_any_size_are_the_whole_cohort(x64):
    assert_streams(worlds.busybody(), [1, 2, 3, K, K + 1])
