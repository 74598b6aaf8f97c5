"""A run with the states of sampled clients on the host equals one with a row for every client on the device."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds
from support.files import one_line
from support.small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.core.types import Variables
from fedvg_jax.host import hardware as hw
from fedvg_jax.runs.placement import client_states
from fedvg_jax.runs.placement.client_states import Federation
from fedvg_jax.runs.record import checkpoint, stored

MILLION = Federation(num_clients=10**6, cohort_size=1000, rounds=50)
SETTINGS = Config(
    clients=20,
    join_ratio=0.2,
    partition="iid",
    min_samples=2,
    batch_size=4,
    local_epochs=2,
    rounds=3,
    eval_every=1,
    devices="1",
    weighting="uniform",
    dropout=0.2,
    lr=0.05,
    momentum=0.5,
    keep=1,
    seed=3,
)
"""Of `worlds.full_algorithm`, with probes as elastic has. One client is sampled in every round; others drop out."""


@functools.cache
def run(placement, callbacks=True, **changes):
    """Returns the history, and the states after each round on the host; `changes` are settings.

    Chunks of a run with states on the host have one round.
    """
    states = []
    config = replace(SETTINGS, placement=placement, **changes)

    def keep(record, state):
        states.append(checkpoint.to_host(state))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_states, "CHUNK_BYTES", 1)
        given = linear.GIVEN | {"algorithm": worlds.full_algorithm()}
        history = fv.run(config, **given, callbacks=[keep] if callbacks else [])
    return history, states


def assert_equal_states(some, every):
    """All fields, with the states by client; those of clients without a row are zeros."""

    def compare(rows, of_all):
        others = np.delete(of_all, some.client_ids, 0)
        np.testing.assert_array_equal(rows, of_all[some.client_ids])
        assert not others.any()

    jax.tree.map(compare, some.clients, every.clients)
    jax.tree.map(np.testing.assert_array_equal, some[:3], every[:3])


def test_client_states_on_the_host_are_those_on_the_device_to_the_bit():
    whole = run("device")
    history, states = run("host")
    cohorts = [record["clients"] for record in history.records]
    sampled = list(dict.fromkeys(itertools.chain(*cohorts)))
    assert len(sampled) < sum(map(len, cohorts)), "a client is sampled twice"
    assert len(sampled) < 20 and any("dropped" in record for record in history.records)
    assert_equal_runs(history, whole[0])
    for some, every in zip(states, whole[1], strict=True):
        assert_equal_states(some, every)
    assert states[-1].client_ids.tolist() == sampled


@pytest.mark.parametrize(
    ("first", "then", "num_stored"), [("device", "host", 20), ("host", "device", 7)]
)
def test_a_run_is_resumed_with_more_rounds_wherever_its_client_states_were(
    tmp_path, first, then, num_stored
):
    """A checkpoint of states on the host holds those of sampled clients only."""
    run(first, callbacks=False, rounds=2, out=tmp_path / "run")
    leaves = stored.about(stored.checkpoint_path(tmp_path / "run", 2))["leaves"]
    assert leaves["state.clients.w"][0] == [num_stored, 3]
    assert ("state.client_ids" in leaves) == (first != "device")
    history, states = run(then, out=tmp_path / "run", resume=str(tmp_path / "run"))
    whole = run("device")
    assert_equal_runs(history, whole[0])
    last, every = states[-1], whole[1][-1]
    if then == "device":
        jax.tree.map(np.testing.assert_array_equal, last, every)
    else:
        assert_equal_states(last, every)


@pytest.mark.parametrize("placement", ["device", "host"])
@pytest.mark.parametrize(
    ("first", "after"),
    [
        (jnp.zeros(3), lambda state: state + 1),
        (jax.random.key(0), lambda key: jax.random.fold_in(key, 1)),
    ],
    ids=["array", "key"],
)
def test_a_run_is_resumed_whatever_state_its_clients_have(placement, first, after, tmp_path):
    algorithm = fv.algorithms.fedavg()._replace(
        init=lambda hyper, params: ((), first),
        report=lambda hyper, theta, anchor, displacement: (after(anchor.client), (), ()),
    )
    config = replace(SETTINGS, algorithm="fedavg", placement=placement, dropout=0.0)
    given = linear.GIVEN | {"algorithm": algorithm}
    fv.run(replace(config, rounds=2, out=tmp_path), **given)
    resumed = fv.run(replace(config, out=tmp_path, resume=str(tmp_path)), **given)
    assert resumed.summary["resumed_from"] == 2
    assert_equal_runs(resumed, fv.run(config, **given))


def test_a_run_is_not_resumed_with_another_given_model_that_clients_not_sampled_yet_start_from(
    tmp_path,
):
    """A checkpoint of states on the host has no personal model of theirs."""
    config = replace(SETTINGS, algorithm="ditto", placement="host", rounds=1, out=tmp_path / "run")
    model = Variables({"w": np.ones(3, np.float32)}, {})
    fv.run(config, **linear.GIVEN, initial=model)
    config = replace(config, rounds=2, resume=str(config.out))
    for other in (None, model._replace(params={"w": np.zeros(3, np.float32)})):
        with one_line("other initial model"):
            fv.run(config, **linear.GIVEN, initial=other)
    fv.run(config, **linear.GIVEN, initial=model)


# --- the choice


def test_devices_have_a_row_for_every_client_unless_memories_are_large_and_few_are_sampled_or_they_fill_the_devices():
    assert not client_states.stays_on_host("host", MILLION, 0, 1), "no memories"
    assert client_states.stays_on_host("host", MILLION, 1, 1)
    assert not client_states.stays_on_host("auto", MILLION, 67, 1), "64 MiB for all"
    assert not client_states.stays_on_host("device", MILLION, 2**20, 1)
    often = MILLION._replace(rounds=1000)
    gpus = hw.Hardware("gpu", "NVIDIA H100", num_devices=4, cores=16, memory_bytes=80 * 2**30)
    with hw.assumed(gpus):
        assert client_states.stays_on_host("auto", MILLION, 2**10, 1), "few are sampled"
        assert not client_states.stays_on_host("auto", often, 2**10, 1)
        assert client_states.stays_on_host("auto", often, 2**16, 1), "they fill one device"
        assert not client_states.stays_on_host("auto", often, 2**16, 4)


def test_the_clients_of_a_chunk_fit_its_rows_which_devices_divide():
    """Rounds of 1000 clients in at most 64 MiB, rounded up to four significant bits."""
    assert client_states.fit_chunk(MILLION, 64, 2**16, 1) == (1024, 1)
    assert client_states.fit_chunk(MILLION, 64, 2**14, 1) == (4096, 4)
    assert client_states.fit_chunk(MILLION, 3, 2**14, 1) == (3072, 3)
    assert client_states.fit_chunk(MILLION, 64, 2**16, 3) == (1026, 1)
    few = Federation(num_clients=20, cohort_size=4, rounds=3)
    assert client_states.fit_chunk(few, 64, 2**10, 3) == (21, 64), "all clients have rows"
