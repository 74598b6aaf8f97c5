"""Points computed side by side have the histories of the points alone, whatever happens to their neighbours."""

from __future__ import annotations

import dataclasses
import signal

import flax.linen as nn
import numpy as np
import pytest
import worlds
from processes import default_signals
from small_sweeps import base_config, histories, timeless

import fedvg_jax
from fedvg_jax.config import axes, sweep_points
from fedvg_jax.config.allowed import RECORDS
from fedvg_jax.core.types import UsageError
from fedvg_jax.models import task as tasks
from fedvg_jax.models.layers import dense
from fedvg_jax.runs import (
    checkpoint,
    history,
    joint_points,
    simulation,
    stop_signals,
    sweep_folder,
    sweeps,
    verification,
)
from fedvg_jax.runs.sweep_folder import Failure

NAMES = ("alpha", "seed", "lr", "rounds")
ROWS = [(0.5, 0, 0.1, 4), (5.0, 1, 0.05, 4), (1.0, 2, 0.2, 3)]
SHARE = sweeps.Sharing(2)
RECORDED = {
    "scores", "layer_shares", "client_accuracy", "client_val_loss", "client_drift", "client_fisher_trace",
    "test_confusion", "test_calibration", "test_calibration_error", "accuracy_by_client", "accuracy_by_client_mean",
    "worst_decile",
}  # fmt: skip
"""Entries of an evaluated round that FedVG and the names in `RECORDS` add."""


class Linear(nn.Module):
    """One dense layer."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        return dense(x.reshape(x.shape[0], -1), 3, "classifier")


GIVEN = {"task": tasks.classification(Linear(), 3, (2, 2, 1)), "data": worlds.images(240)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """FedVG with everything that `--record` adds."""
    settings = base_config(tmp_path_factory.mktemp("cache"))
    return dataclasses.replace(settings, weighting="fedvg", record=",".join(RECORDS))


def open_sweep(base, out=None, rows=ROWS):
    """The points of a sweep, in a folder made for them."""
    layer = sweep_points.Layer({"partition_seed": "follow"}, "sweep")
    sweep = sweep_points.Sweep(axes.parse_axes({NAMES: rows}), (layer,), base)
    points = sweep_points.make_points(sweep)
    if out:
        sweep_folder.open_folder(out, sweep_folder.document(sweep, points), points.points)
    return points.points


def compute(points, out, share=SHARE, **observers):
    return sweeps.compute(points, out, sweeps.Observers(**observers), GIVEN, share=share)


@pytest.fixture(scope="module")
def alone(base):
    return fedvg_jax.run_sweep(base, {NAMES: ROWS}, vectorize="off", **GIVEN)


@pytest.fixture(scope="module")
def together(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweeps") / "together"
    return out, fedvg_jax.run_sweep(base, {NAMES: ROWS}, out, vectorize=2, **GIVEN)


@pytest.mark.slow
@pytest.mark.parametrize("join_ratio", [1.0, 0.34], ids=["six clients", "two clients"])
def test_points_side_by_side_on_four_devices_equal_those_of_one(base, join_ratio):
    """Alone, a run of two clients has two devices to score each; together, their clients are jobs for all four."""
    settings = dataclasses.replace(base, weighting="fedvg", join_ratio=join_ratio, rounds=1)
    rows = [(row[0], row[1], row[2], 1) for row in ROWS[:2]]

    def computed(devices, share):
        swept = dataclasses.replace(settings, devices=devices)
        return fedvg_jax.run_sweep(swept, {NAMES: rows}, vectorize=share, **GIVEN)

    four, one = computed("4", 2), computed("1", "off")
    for mine, other in zip(four, one, strict=True):
        for name in ("weights", "scores", "test_loss", "val_loss"):
            expected = [record[name] for record in other.result.records]
            np.testing.assert_allclose([record[name] for record in mine.result.records], expected, 1e-5)


def test_points_side_by_side_equal_the_points_alone(alone, together):
    assert histories(together[1]) == histories(alone)
    assert all(set(result.result.records[-1]) >= RECORDED for result in alone)
    timed = {"compile_seconds", "run_seconds", "rounds_per_second"}
    for one, other in zip(alone, together[1], strict=True):
        assert {k: v for k, v in one.result.summary.items() if k not in timed} == {
            k: v for k, v in other.result.summary.items() if k not in timed
        }
        assert not verification.check(together[0] / "points" / other.name).misfits


@pytest.mark.slow
def test_points_of_other_methods_have_programs_of_their_own(base, monkeypatch):
    compiled, compile_joint = [], joint_points.compile_joint

    def count(sims):
        compiled.append(len(sims))
        return compile_joint(sims)

    monkeypatch.setattr(joint_points, "compile_joint", count)
    axes = {"weighting": ["uniform", "samples"], "seed": "0:3"}
    small = dataclasses.replace(base, rounds=1)
    actual = fedvg_jax.run_sweep(small, axes, vectorize=2, **GIVEN)
    assert compiled == [2, 2]
    assert histories(actual) == histories(fedvg_jax.run_sweep(small, axes, vectorize="off", **GIVEN))


def test_points_on_other_pixels_do_not_share_a_program(base):
    sims = [simulation.simulation(dataclasses.replace(base, seed=seed), **GIVEN) for seed in range(2)]
    x, y = GIVEN["data"]
    other = simulation.simulation(base, data=(255 - x, y), task=GIVEN["task"])
    assert joint_points.fits(sims[0], sims[1])
    assert not joint_points.fits(sims[0], other)
    assert not joint_points.fits(sims[0], simulation.simulation(dataclasses.replace(base, batch_size=4), **GIVEN))


def test_diverging_point_is_recorded_and_its_neighbours_go_on(base, alone, tmp_path):
    points = open_sweep(base, tmp_path / "out", [(0.7, 3, 1e38, 4), *ROWS])
    results, _ = compute(points, tmp_path / "out")
    diverged, *others = (results[point.name] for point in points)
    assert isinstance(diverged, Failure) and diverged.kind == "diverged"
    assert sweep_folder.read_failure(tmp_path / "out" / "points" / points[0].name) == diverged
    assert [timeless(r.records) for r in others] == list(histories(alone).values())


class Killed(BaseException):
    """Ends a sweep as a kill does: nothing more is written."""


@pytest.mark.parametrize("every", [0, 2])
def test_killed_sweep_continues_with_the_same_histories(base, alone, tmp_path, every):
    def kill(point, records):
        if records[-1]["round"] == 4:
            raise Killed

    out = tmp_path / "out"
    points = open_sweep(dataclasses.replace(base, checkpoint_every=every), out)
    with pytest.raises(Killed):
        compute(points, out, on_records=kill)
    results, _ = compute(points, out)
    assert [timeless(results[point.name].records) for point in points] == list(histories(alone).values())
    resumed = [results[point.name].summary["resumed_from"] for point in points]
    assert resumed == ([2, 2, None] if every else [None, None, None])
    for point in points:
        assert not verification.check(out / "points" / point.name).misfits


@pytest.mark.parametrize("share", [sweeps.Sharing(1), SHARE], ids=["alone", "side by side"])
def test_rounds_of_earlier_processes_are_reported_as_such(base, tmp_path, share):
    """A time left that counted them as computed would be too short by their number."""

    def kill(point, records):
        if records[-1]["round"] == 4:
            raise Killed

    out, resumed, shown = tmp_path / "out", [], []
    points = open_sweep(dataclasses.replace(base, checkpoint_every=2), out, ROWS[:2])
    with pytest.raises(Killed):
        compute(points, out, share, on_records=kill)
    compute(
        points,
        out,
        share,
        on_resume=lambda point, number: resumed.append((point.name, number)),
        on_records=lambda point, records: shown.append((point.name, records[-1]["round"])),
    )
    started = points if share == SHARE else points[:1]
    assert resumed == [(point.name, 2) for point in started]
    assert all(shown.index(earlier) < shown.index((earlier[0], 4)) for earlier in resumed)


def test_stop_signal_ends_all_points_after_the_present_chunk_and_the_sweep_can_go_on(base, alone, tmp_path):
    out = tmp_path / "out"
    points = open_sweep(base, out)
    stopped = compute(points, out, on_records=lambda point, records: signal.raise_signal(signal.SIGTERM))
    assert stopped == ({}, "SIGTERM")
    assert [len(fedvg_jax.History.load(out / "points" / p.name).records) for p in points[:2]] == [1, 1]
    results, stopped_by = compute(points, out)
    assert stopped_by is None
    assert [timeless(results[point.name].records) for point in points] == list(histories(alone).values())


@pytest.mark.parametrize("name", [number.name for number in stop_signals.SAVING])
def test_save_signal_writes_a_checkpoint_of_every_point_and_they_go_on(base, alone, tmp_path, name):
    """After the chunk that is computed when the signal arrives: the one of rounds 2."""
    out, logged = tmp_path / "out", []
    points = open_sweep(dataclasses.replace(base, keep=9), out, ROWS[:2])

    def ask(point, records):
        if records[-1]["round"] == 1 and point is points[-1]:
            signal.raise_signal(signal.Signals[name])

    with default_signals():
        results, stopped_by = compute(points, out, on_records=ask, log=logged.append)
    assert (stopped_by, logged) == (None, [f"{name}: checkpoints of 2 runs"])
    for point, expected in zip(points, alone, strict=False):
        folders = checkpoint.checkpoint_folders(out / "points" / point.name)
        assert [folder.name for folder in folders] == ["000002", "000004"]
        assert timeless(results[point.name].records) == timeless(expected.result.records)


def test_point_that_cannot_be_recorded_fails_alone(base, alone, tmp_path, monkeypatch):
    append = history.append

    def fail(folder, records, is_first):
        if "seed=1" in folder.name and records[-1]["round"] > 1:
            raise OSError(28, "No space left on device")
        return append(folder, records, is_first)

    monkeypatch.setattr(history, "append", fail)
    points = open_sweep(base, tmp_path / "out")
    results, _ = compute(points, tmp_path / "out")
    first, failed, last = (results[point.name] for point in points)
    assert isinstance(failed, Failure) and (failed.kind, failed.round) == ("failed", 2)
    assert [timeless(r.records) for r in (first, last)] == list(histories(alone).values())[::2]


@pytest.mark.parametrize("pays", [False, True])
def test_auto_shares_a_program_only_where_it_is_measured_to_be_faster(base, monkeypatch, pays):
    calls = []
    monkeypatch.setattr(joint_points, "compile_joint", len)
    monkeypatch.setattr(joint_points, "pays", lambda joint, sims: pays)
    monkeypatch.setattr(joint_points, "compute", lambda joint, *rest: calls.append(joint))
    results, _ = compute(open_sweep(base), None, sweeps.Sharing(3, is_measured=True))
    assert (calls, len(results)) == (([3], 0) if pays else ([], 3))


def test_sharing_pays_from_a_ratio_of_times_on(base, monkeypatch):
    sims = [simulation.simulation(point.config, **GIVEN) for point in open_sweep(base)[:2]]
    joint, seconds = joint_points.compile_joint(sims), iter([1.2, 1.0, 1.19, 1.0])
    monkeypatch.setattr(joint_points, "_seconds_of_second_call", lambda call: call() or next(seconds))
    assert [joint_points.pays(joint, sims) for _ in range(2)] == [True, False]


def failing_program(monkeypatch, where, first=0):
    """Makes joint programs fail: to compile, or in every chunk from number `first` on."""
    compile_joint, calls = joint_points.compile_joint, []

    def fail(*arguments):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    def compiled(sims):
        joint = compile_joint(sims)

        def chunk(*arguments):
            calls.append(1)
            return joint.chunk(*arguments) if len(calls) <= first else fail()

        return joint._replace(chunk=chunk)

    monkeypatch.setattr(joint_points, "compile_joint", fail if where == "compile" else compiled)


@pytest.mark.parametrize(("where", "num_done"), [("compile", 0), ("chunk", 0), ("chunk", 1)])
def test_points_of_a_joint_program_that_fails_are_recorded_and_the_sweep_goes_on(
    base, alone, tmp_path, monkeypatch, where, num_done
):
    failing_program(monkeypatch, where, num_done)
    results = fedvg_jax.run_sweep(base, {NAMES: ROWS}, tmp_path / "out", vectorize=2, **GIVEN)
    *failed, last = (result.result for result in results)
    assert failed == [Failure("failed", num_done, "RuntimeError: RESOURCE_EXHAUSTED: out of memory")] * 2
    assert timeless(last.records) == timeless(alone[-1].result.records)
    assert len(list((tmp_path / "out").rglob("failure.json"))) == 2
    monkeypatch.undo()
    again = fedvg_jax.run_sweep(base, {NAMES: ROWS}, tmp_path / "out", vectorize=2, **GIVEN)
    assert histories(again) == histories(alone)


@pytest.mark.parametrize(
    ("where", "num_done", "pays"),
    [("compile", 0, True), ("chunk", 0, None), ("chunk", 0, True), ("chunk", 2, True)],
    ids=["compiling", "measuring", "first", "third"],
)
@pytest.mark.parametrize("every", [0, 1])
def test_auto_computes_points_alone_whose_joint_program_fails(
    base, alone, tmp_path, monkeypatch, where, num_done, pays, every
):
    if pays:
        monkeypatch.setattr(joint_points, "pays", lambda joint, sims: True)
    failing_program(monkeypatch, where, num_done)
    out, logged = tmp_path / "out", []
    points = open_sweep(dataclasses.replace(base, checkpoint_every=every), out)
    results, _ = compute(points, out, sweeps.Sharing(2, is_measured=True), log=logged.append)
    assert [timeless(results[point.name].records) for point in points] == list(histories(alone).values())
    assert logged[0] == (
        "2 points side by side: RuntimeError: RESOURCE_EXHAUSTED: out of memory; they are computed one after another"
    )
    for point in points:
        assert not verification.check(out / "points" / point.name).misfits


def test_settings_that_cannot_share_a_program_are_refused_in_one_line(base):
    blocks = dataclasses.replace(base, hold=2)
    with pytest.raises(UsageError, match=r"vectorize 2 beside hold 2, which .*; use --hold 0; or use --vectorize auto"):
        fedvg_jax.run_sweep(blocks, {NAMES: ROWS}, vectorize=2)
    with pytest.raises(UsageError, match="vectorize must be off, auto or a number"):
        fedvg_jax.run_sweep(base, {NAMES: ROWS}, vectorize="some")
