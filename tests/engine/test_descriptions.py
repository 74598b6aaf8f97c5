"""What clients compute of their rows before the first round reaches every function, wherever rows and clients are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.core.types import ClientRows
from fedvg_jax.engine import executors
from fedvg_jax.weightings import basic

WORLD = worlds.small()

CONFIG = fv.Config(
    clients=6,
    rounds=3,
    local_epochs=1,
    model="linear",
    seed=3,
    eval_every=1,
)


@pytest.mark.parametrize(
    "executor",
    [executors.lanes(1), executors.lanes(2), executors.vmapped(), executors.sharded(2, 1)],
    ids=["one lane", "two lanes", "vmap", "two devices"],
)
def test_every_client_gets_its_own_description_in_every_bit(executor):
    """A signal and a report return what they get, for ragged clients of an unsorted cohort in client chunks."""
    counts = WORLD.label_counts()

    def init(hyper, params):
        return (), jnp.zeros(counts.shape[1], jnp.int32)

    algorithm = fv.algorithms.fedavg()._replace(
        init=init,
        report=lambda hyper, params, anchor, displacement: (anchor.described, (), ()),
        describe=ClientRows.label_counts,
    )

    def weigh(hyper, described, view):
        return basic.weigh_by_scalar(hyper, 1.0 + described[:, 0].astype(float), view)

    rule = fv.Weighting(
        signal=lambda hyper, client, data: client.described,
        weigh=weigh,
        score=lambda described: described[:, 0].astype(float),
        detail=lambda described: {"counts": described},
        terms=fv.weightings.single_term(weigh),
        describe=ClientRows.label_counts,
    )
    schedule = WORLD.schedule(0, executor.num_lanes, client_chunk_size=2)
    arguments = WORLD, [schedule], algorithm, rule, worlds.TASK
    ((state, metrics),) = worlds.play(*arguments, executor=executor)
    has_trained = schedule.num_steps > 0
    clients = schedule.clients[has_trained]
    np.testing.assert_array_equal(metrics.detail["counts"][has_trained], counts[clients])
    np.testing.assert_array_equal(state.clients[clients], counts[clients])


def test_runs_with_descriptions_agree_to_the_bit_on_the_host_and_resumed(tmp_path):
    config = replace(CONFIG, algorithm="fedlc", weighting="feddisco+fedvg", alpha=0.3)
    whole = fv.run(config)
    assert_equal_runs(fv.run(replace(config, placement="host")), whole)
    fv.run(replace(config, rounds=2, out=tmp_path))
    assert_equal_runs(fv.run(replace(config, resume=str(tmp_path))), whole)


def test_all_clients_send_a_weighting_s_description_before_the_first_round_and_none_of_an_algorithm():
    def bytes_up(**settings):
        records = fv.run(replace(CONFIG, **settings)).records
        return np.array([record["bytes_up"] for record in records])

    extra = bytes_up(weighting="feddisco", algorithm="fedlc") - bytes_up(weighting="samples")
    assert extra.tolist() == [CONFIG.clients * 10 * 4, 0, 0], "ten int32 counts"


@pytest.mark.parametrize("size", [None, 2], ids=["whole", "client chunks"])
def test_a_weighting_sees_its_own_descriptions_and_none_of_the_algorithm_s(size):
    """Neither its signal nor what the server weighs by: an algorithm's stay on the clients, and count nowhere."""
    seen = []

    def weigh(hyper, ones, view):
        seen.append(view.data.described)
        return basic.weigh_by_scalar(hyper, ones, view)

    def signal(hyper, client, data):
        seen.append(data.described)
        return client.described[0].astype(float)

    algorithm = fv.algorithms.fedavg()._replace(describe=ClientRows.label_counts)
    rule = fv.Weighting(signal, weigh, describe=ClientRows.label_counts)
    rule = rule._replace(terms=fv.weightings.single_term(weigh))
    step = worlds.round_step(WORLD, algorithm, rule, worlds.TASK)
    schedule = WORLD.schedule(0, 2, client_chunk_size=size)
    start = worlds.state(WORLD, algorithm, worlds.TASK)
    jax.eval_shape(step, start, schedule, WORLD.data(), worlds.hyper())
    assert len(seen) >= 2
    for described in seen:
        assert described.algorithm == ()
        assert described.weighting.shape == WORLD.label_counts().shape
