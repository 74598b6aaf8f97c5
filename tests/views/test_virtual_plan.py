"""What runs show of virtual time: in dry runs, in progress and in results."""

import re

import jax
import numpy as np

import fedvg_jax as fv
from fedvg_jax import sim
from fedvg_jax.core import tree
from fedvg_jax.engine.virtual_time import timeline
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.views import virtual_plan

SMALL = {"clients": 10, "rounds": 6, "local_epochs": 1, "alpha": 1.0, "model": "linear"}
CLOCK = {"step": 1.0, "speeds": "lognormal"}
FLAGS = "--clients 10 --rounds 6 --local-epochs 1 --alpha 1 --model linear --eval-every 3 --clock.step 1"


def test_a_dry_run_of_a_buffered_server_shows_its_timeline(capsys):
    server = "--buffered.size 2 --buffered.concurrency 5 --buffered.max-staleness 1"
    assert sim.main([*FLAGS.split(), *server.split(), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for name in ("virtual time", "staleness", "in the buffer", "dropped", "versions"):
        assert re.search(rf"{name} .*\d", shown)
    assert "first 12 arrivals" in shown and len(shown.splitlines()) < 40


def test_the_plan_of_a_buffered_server_equals_its_records():
    server = {"size": 3, "concurrency": 6, "max_staleness": 1}
    config = fv.Config(**SMALL, clock=CLOCK, buffered=server)
    records, made = fv.run(config).records, fv.simulation(config)
    rows = virtual_plan.rows(made)
    staleness = np.array([record["staleness"] for record in records])
    dropped = sum(len(record.get("dropped", ())) for record in records)
    assert rows["staleness"] == f"mean {staleness.mean():.3g}, largest {staleness.max()}"
    assert rows["dropped"].startswith(f"{dropped / staleness.size:.0%}")
    assert made.timeline is not None
    ends = made.timeline.virtual_seconds
    np.testing.assert_allclose(ends, [r["virtual_seconds"] for r in records], rtol=1e-6)
    assert (made.timeline.arrived[:, -1] == ends).all()
    assert (np.diff(made.timeline.arrived.ravel()) >= 0).all()


def test_waiting_in_a_buffer_is_the_time_to_the_update():
    """Two clients that arrive at 1, 2, 2, 3 s into a buffer of 2, which one fills at 2 s and again at 2 s."""
    made = timeline([1.0, 2.0], concurrency=2, buffer=2, updates=2)
    assert made.arrived.tolist() == [[1.0, 2.0], [2.0, 3.0]]
    assert made.virtual_seconds.tolist() == [2.0, 3.0]


def test_the_plan_of_a_synchronous_server_says_how_long_clients_wait():
    clock = fv.Clock(fixed_seconds=np.array([1.0, 3.0]))
    config = fv.Config(clients=2, join_ratio=1.0, alpha=10.0, rounds=4, model="linear")
    rows = virtual_plan.rows(fv.simulation(config, clock=clock))
    assert rows["virtual time"] == "about 12 s" and rows["first rounds"] == "3 s, 3 s, 3 s, 3 s"
    assert rows["clients wait"].startswith("33%")


def test_a_run_shows_its_virtual_time_and_draws_clients_that_train_twice_in_an_update(
    tmp_path, capsys
):
    server = "--buffered.size 5 --buffered.concurrency 2"
    assert sim.main([*FLAGS.split(), *server.split(), "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"accuracy [\d.]+%, virtual time \d", shown)) == 2
    assert re.search(r"virtual time +│ \d", shown)


def test_the_memory_of_a_chunk_counts_the_slots():
    def arguments(**settings):
        made = fv.simulation(fv.Config(**SMALL, join_ratio=0.3, clock=CLOCK, **settings))
        compiled = simulation.trace_chunk(made).lower().compile()
        return programs.program_bytes(compiled), made.state.versions

    synchronous, _ = arguments()
    buffered, versions = arguments(buffered={"size": 3, "concurrency": 6})
    assert tree.num_bytes(versions) > 0 and jax.tree.leaves(versions)[0].shape[0] > 1
    assert buffered >= synchronous + tree.num_bytes(versions)
