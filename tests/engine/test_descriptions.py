"""What clients compute of their rows before the first round reaches every function, wherever rows and clients are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import worlds

import fedvg_jax as fv
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, ClientReturn, ClientRows, Described
from fedvg_jax.engine import descriptions, executors
from fedvg_jax.weightings import basic

WORLD = worlds.small()

CONFIG = fv.Config(
    dataset="digits",
    clients=6,
    rounds=3,
    local_epochs=1,
    join_ratio=0.5,
    model="linear",
    seed=3,
    eval_every=1,
)


def summary(rows: ClientRows):
    """Label counts, a mean of the inputs and the number of rows."""
    mean = rows.x.mean(dtype=np.float32) if len(rows.x) else np.float32(0)
    return {"counts": rows.label_counts(), "mean": mean, "size": len(rows.y)}


def remembering():
    """FedAvg with clients that keep what their loss, correction and report get."""
    plain = fv.algorithms.fedavg()

    def total(described):
        return sum(leaf.astype(float).sum() for leaf in jax.tree.leaves(described))

    def loss(hyper, task, params, stats, batch, mask, key, anchor):
        value, stats = task.loss(params, stats, batch, mask, True)
        return value + 1e-3 * total(anchor.described).astype(value.dtype), stats

    def correct(hyper, grads, params, anchor):
        factor = 1 + 1e-3 * total(anchor.described)
        return jax.tree.map(lambda g: factor.astype(g.dtype) * g, grads)

    def report(hyper, params, anchor, displacement):
        return anchor.described, (), ()

    def init(hyper, params):
        return (), {
            "counts": jnp.zeros(10, jnp.int32),
            "mean": jnp.zeros((), jnp.float32),
            "size": jnp.zeros((), jnp.int32),
        }

    return plain._replace(init=init, loss=loss, correct=correct, report=report, describe=summary)


def showing():
    """Weights by a client's mean input, with all that its signal gets in the history."""

    def weigh(hyper, described, view):
        return basic.weigh_by_scalar(hyper, 1 + described["mean"], view)

    return fv.Weighting(
        signal=lambda hyper, client, data: client.described,
        weigh=weigh,
        score=lambda described: described["mean"],
        detail=lambda described: {
            "label_counts": described["counts"].astype(float),
            "rows": described["size"].astype(float),
        },
        describe=summary,
    )


def records(history):
    return [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in history.records
    ]


@pytest.mark.parametrize(
    "executor",
    [executors.lanes(1), executors.lanes(2), executors.vmapped(), executors.sharded(2, 1)],
    ids=["one lane", "two lanes", "vmap", "two devices"],
)
@pytest.mark.parametrize("size", [None, 2], ids=["whole cohort", "client chunks"])
def test_every_client_gets_its_own_description_in_every_bit(executor, size):
    """A signal and a report return what they get, for ragged clients of an unsorted cohort."""
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
    schedule = WORLD.schedule(0, executor.num_lanes, client_chunk_size=size)
    step = worlds.round_step(WORLD, algorithm, rule, worlds.TASK, executor=executor)
    start = worlds.state(WORLD, algorithm, worlds.TASK)
    state, metrics = worlds.jit(step)(start, schedule, WORLD.data(), worlds.hyper())
    has_trained = schedule.num_steps > 0
    clients = schedule.clients[has_trained]
    np.testing.assert_array_equal(metrics.detail["counts"][has_trained], counts[clients])
    np.testing.assert_array_equal(state.clients[clients], counts[clients])


def test_runs_with_descriptions_agree_to_the_bit_wherever_rows_and_states_are(tmp_path):
    """On the device, on the host, and resumed from a checkpoint."""
    own = {"algorithm": remembering(), "weighting": showing()}
    whole = fv.run(CONFIG, **own)
    on_host = fv.run(replace(CONFIG, placement="host"), **own)
    assert records(on_host) == records(whole)
    first = replace(CONFIG, rounds=2, out=tmp_path / "run", checkpoint_every=1)
    fv.run(first, **own)
    resumed = fv.run(replace(CONFIG, resume=tmp_path / "run"), **own)
    assert records(resumed) == records(whole)
    counts = np.array(whole.records[0]["label_counts"])
    assert (counts.sum(1) == whole.records[0]["rows"]).all() and counts.std() > 0


def test_fedlc_with_feddisco_s_and_fedvg_s_weights_agrees_on_the_host():
    config = replace(CONFIG, algorithm="fedlc", weighting="feddisco+fedvg", alpha=0.3)
    assert records(fv.run(replace(config, placement="host"))) == records(fv.run(config))


def test_all_clients_send_a_weighting_s_description_before_the_first_round_and_none_of_an_algorithm():
    plain = fv.run(replace(CONFIG, weighting="samples"))
    disco = fv.run(replace(CONFIG, weighting="feddisco", algorithm="fedlc"))
    extra = [
        own["bytes_up"] - other["bytes_up"]
        for own, other in zip(disco.records, plain.records, strict=True)
    ]
    assert extra == [CONFIG.clients * 10 * 4, 0, 0], "ten int32 counts"


def test_a_mean_of_weightings_gives_each_its_own_description():
    def by(name):
        rule = basic.by_scalar(lambda hyper, client, data: client.described[name])
        return rule._replace(describe=lambda rows: {name: len(rows.y) + (name == "b")})

    mean = basic.mix(by("a"), basic.mix(basic.uniform(), by("b")))
    rows = [np.arange(2), np.arange(2, 7)]
    pool = Batch(np.zeros((7, 1)), np.zeros(7, np.int32))
    described = descriptions.describe_clients(fv.algorithms.fedavg(), mean, pool, rows, 1)
    assert jax.tree.map(np.ndarray.tolist, described) == Described(
        (), ({"a": [2, 5]}, ((), {"b": [3, 6]}))
    )
    data = WORLD.data()._replace(described=described)
    client = ClientReturn(worlds.variables(), jnp.int32(1), {}, jnp.int32(1))
    client = client._replace(described=tree.take(described.weighting, 1))
    first, (_, second) = mean.signal(worlds.hyper(), client, data)
    assert (int(first), int(second)) == (5, 6)
