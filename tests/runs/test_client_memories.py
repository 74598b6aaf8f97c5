"""A run with memories for sampled clients only, on devices or on the host, equals one with a row for every client."""

import json
from dataclasses import replace

import jax
import linear
import numpy as np
import pytest
import worlds
from small_sweeps import assert_equal_runs

import fedvg_jax as fv
from fedvg_jax.config import Config
from fedvg_jax.core import hardware as hw
from fedvg_jax.core.types import SimState, UsageError
from fedvg_jax.engine import executors
from fedvg_jax.runs import client_memories
from fedvg_jax.runs.client_memories import Placement
from fedvg_jax.runs.record import checkpoint

MILLION = Config(clients=10**6, join_ratio=1e-3, rounds=50)
SETTINGS = Config(
    **{"clients": 20, "join_ratio": 0.2, "partition": "iid", "min_samples": 2, "batch_size": 4, "local_epochs": 2},
    **{"rounds": 3, "eval_every": 1, "devices": "1", "weighting": "uniform", "dropout": 0.2, "lr": 0.05},
    **{"momentum": 0.5, "algorithm": "elastic", "keep": 1, "seed": 3},
)
"""Of `worlds.full_algorithm`, with probes as elastic has. One client is sampled in every round; others drop out."""
LAYOUTS = {
    "all": {"DENSE_BYTES": 2**40},
    "device": {"DENSE_BYTES": 0},
    "host": {"DENSE_BYTES": 0},
    "host, a round": {"DENSE_BYTES": 0, "CHUNK_BYTES": 1},
}
"""Layout -> constants of `client_memories`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(layout, settings) -> (history, the states after each round, on the host)."""
    cache, algorithm = tmp_path_factory.mktemp("cache"), worlds.full_algorithm()

    def run(layout, callbacks=True, **changes):
        states = []
        memories = "host" if layout.startswith("host") else "device"
        config = replace(SETTINGS, cache_dir=cache, memories=memories, **changes)

        def keep(record, state):
            states.append(checkpoint.to_host(state))

        with pytest.MonkeyPatch.context() as patch:
            for name, value in LAYOUTS[layout].items():
                patch.setattr(client_memories, name, value)
            given = {"data": linear.data(), "task": linear.TASK, "algorithm": algorithm}
            history = fv.run(config, **given, callbacks=[keep] if callbacks else [])
        return history, states

    return run


@pytest.fixture(scope="module")
def whole(run):
    return run("all")


def by_client(state: SimState, num_clients: int):
    """The memories of a state with rows for some clients, as those of all clients; the others' are zeros."""

    def placed(leaf):
        result = np.zeros((num_clients, *leaf.shape[1:]), leaf.dtype)
        is_used = state.memory_clients >= 0
        result[state.memory_clients[is_used]] = leaf[is_used]
        return result

    return jax.tree.map(placed, state.clients)


def assert_equal_states(some, every):
    """All fields, with the memories by client."""
    memories = by_client(some, len(jax.tree.leaves(every.clients)[0]))
    jax.tree.map(np.testing.assert_array_equal, memories, every.clients)
    jax.tree.map(np.testing.assert_array_equal, some[:3], every[:3])


@pytest.mark.parametrize("layout", ["device", "host, a round"])
def test_memories_of_sampled_clients_give_the_same_states_to_the_bit(run, whole, layout):
    history, states = run(layout)
    cohorts = [record["clients"] for record in history.records]
    sampled = list(dict.fromkeys(k for cohort in cohorts for k in cohort))
    assert len(sampled) < sum(map(len, cohorts)), "a client is sampled twice"
    assert not set(sampled) >= set(range(20)) and any("dropped" in record for record in history.records)
    assert_equal_runs(history, whole[0])
    for some, every in zip(states, whole[1], strict=True):
        assert_equal_states(some, every)
    used = states[-1].memory_clients
    assert used[used >= 0].tolist() == sampled and len(used) == (16 if layout == "device" else len(sampled))


def test_chunks_of_several_rounds_exchange_the_memories_of_all_their_clients(run, whole):
    assert_equal_runs(run("host", callbacks=False, eval_every=3)[0], run("all", callbacks=False, eval_every=3)[0])


@pytest.mark.parametrize(
    ("first", "then"),
    [("device", "all"), ("all", "host, a round"), ("host, a round", "device")],
)
def test_a_run_is_resumed_with_more_rounds_wherever_its_memories_were(run, whole, tmp_path, first, then):
    run(first, callbacks=False, rounds=2, out=tmp_path / "run")
    history, states = run(then, out=tmp_path / "run", resume=str(tmp_path / "run"))
    assert_equal_runs(history, whole[0])
    last, every = states[-1], whole[1][-1]
    if then == "all":
        jax.tree.map(np.testing.assert_array_equal, last, every)
    else:
        assert_equal_states(last, every)


def test_a_checkpoint_holds_the_memories_of_sampled_clients_only(run, tmp_path):
    for layout, count in (("all", 20), ("device", 7), ("host, a round", 7)):
        run(layout, callbacks=False, rounds=2, out=tmp_path / layout)
        seal = json.loads((tmp_path / layout / "checkpoints" / "000002" / "seal.json").read_text())
        assert seal["leaves"]["state.clients.c.w"][0] == [count, 3], layout
        assert ("state.memory_clients" in seal["leaves"]) == (layout != "all")


def test_another_seed_compiles_nothing(run):
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    run("device")
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        other = run("device", seed=1)
    finally:
        jax._src.monitoring.unregister_event_duration_listener(listen)
    assert compiled == [] and len(other[1]) == 3


# --- the choice


BY_CLIENT = Placement(None, max_rounds=64)


def test_rows_are_for_every_client_unless_few_are_sampled_and_divided_among_devices():
    for rounds in (10, 1000):
        settings = replace(MILLION, clients=10**4, join_ratio=0.1, rounds=rounds)
        assert client_memories.choose(settings, 1, 64) == BY_CLIENT
    assert client_memories.choose(replace(MILLION, memories="host"), 0, 64) == BY_CLIENT, "no memories"
    assert client_memories.choose(MILLION, 67, 64) == BY_CLIENT, "64 MiB for all"
    gpus = hw.Hardware("gpu", "NVIDIA H100", num_devices=4, cores=16, memory_bytes=80 * 2**30)
    with hw.assumed(gpus):
        placed = [client_memories.choose(MILLION, 2**20, 64, rows)[:2] for rows in (None, executors.sharded(4, 1).rows)]
    assert placed == [(1024, True), (53248, False)]


def test_a_round_after_the_runs_own_has_rows_and_later_ones_are_refused():
    config = replace(MILLION, clients=1000, join_ratio=0.01, rounds=2)
    rows = client_memories.rows_of_rounds(config, Placement(30))
    assert max(rows(2)) < 30
    with pytest.raises(
        UsageError,
        match=r"round 4 needs memories of more clients than the 30 of a run of 2 rounds; use --rounds 4 or more",
    ):
        rows(3)


def test_rows_follow_the_order_of_first_sampling_in_any_order_of_calls():
    config = replace(MILLION, clients=50, join_ratio=0.2, rounds=4)
    placement = Placement(50)
    forwards, backwards = (client_memories.rows_of_rounds(config, placement) for _ in range(2))
    expected = {r: backwards(r).tolist() for r in (3, 1, 2, 0)}
    assert {r: forwards(r).tolist() for r in range(4)} == expected
    order = client_memories.sampled_clients(config, 4)
    cohort_of = client_memories.cohorts(config)
    assert all(order[expected[r]].tolist() == cohort_of(r).tolist() for r in range(4))


def test_a_host_that_cannot_hold_the_memories_is_refused(monkeypatch):
    monkeypatch.setattr(hw, "host_memory", lambda: 2**30)
    client_memories.refuse_unfitting(MILLION, 2**10)
    with pytest.raises(
        UsageError, match=r"the memories of 51,000 clients and a copy of them need 99\.6 GiB, .* has 1\.0 GiB"
    ):
        client_memories.refuse_unfitting(MILLION, 2**20)
    client_memories.refuse_unfitting(replace(MILLION, force=True), 2**20)
