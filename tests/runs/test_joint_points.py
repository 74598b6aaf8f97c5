"""Points computed side by side have the histories of the points alone, whatever happens to their neighbours."""

from __future__ import annotations

import dataclasses
import signal

import pytest

import fedvg_jax
from fedvg_jax.config import Config, axes, sweep_points
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs import joint_points, sweep_folder, sweeps, verification
from fedvg_jax.runs.sweep_folder import Failure

AXES = {("alpha", "seed", "lr", "rounds"): [(0.5, 0, 0.1, 4), (5.0, 1, 0.05, 4), (1.0, 2, 0.2, 3)]}
SHARE = sweeps.Sharing(2)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return Config(rounds=4, clients=6, local_epochs=1, eval_every=2, weighting="fedvg", cache_dir=cache)


def timeless(records):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def histories(results):
    return {r.name: timeless(r.result.records) for r in results}


def make_points(base, **changed):
    sweep = sweep_points.Sweep(axes.parse_axes({**AXES, **changed}), start=base)
    return sweep, sweep_points.make_points(sweep)


def open_sweep(base, out, **changed):
    sweep, points = make_points(base, **changed)
    sweep_folder.open_folder(out, sweep_folder.document(sweep, points), points.points)
    return points.points


@pytest.fixture(scope="module")
def alone(base):
    return fedvg_jax.run_sweep(base, AXES, vectorize="off")


@pytest.fixture(scope="module")
def together(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweeps") / "together"
    return out, fedvg_jax.run_sweep(base, AXES, out, vectorize=2)


def test_points_side_by_side_equal_the_points_alone(alone, together):
    assert histories(together[1]) == histories(alone)
    timed = {"compile_seconds", "run_seconds", "rounds_per_second"}
    for one, other in zip(alone, together[1], strict=True):
        assert {k: v for k, v in one.result.summary.items() if k not in timed} == {
            k: v for k, v in other.result.summary.items() if k not in timed
        }
        assert not verification.check(together[0] / "points" / other.name).misfits


def test_points_of_other_shapes_and_other_methods_have_programs_of_their_own(base, monkeypatch):
    compiled, compile_joint = [], joint_points.compile_joint

    def count(sims):
        compiled.append(len(sims))
        return compile_joint(sims)

    monkeypatch.setattr(joint_points, "compile_joint", count)
    axes = {"weighting": ["fedvg", "uniform"], "seed": "0:4"}
    small = dataclasses.replace(base, rounds=1)
    found = fedvg_jax.run_sweep(small, axes, vectorize=3)
    assert compiled == [2, 2]
    assert histories(found) == histories(fedvg_jax.run_sweep(small, axes, vectorize="off"))


@pytest.mark.parametrize("share", [SHARE, sweeps.Sharing(3)])
def test_diverging_point_is_recorded_and_its_neighbours_go_on(base, alone, tmp_path, share):
    rows = [*next(iter(AXES.values())), (0.7, 3, 1e30, 4)]
    points = open_sweep(base, tmp_path / "out", **{"alpha,seed,lr,rounds": rows})
    results, _ = sweeps.compute(points, tmp_path / "out", share=share)
    *others, diverged = (results[point.name] for point in points)
    assert isinstance(diverged, Failure) and (diverged.kind, diverged.round) == ("diverged", 1)
    assert sweep_folder.read_failure(tmp_path / "out" / "points" / points[-1].name) == diverged
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
        sweeps.compute(points, out, sweeps.Observers(on_records=kill), share=SHARE)
    results, _ = sweeps.compute(points, out, share=SHARE)
    assert {name: timeless(r.records) for name, r in results.items()} == histories(alone)
    assert [r.summary["resumed_from"] for r in results.values()] == ([2, 2, None] if every else [None] * 3)
    for point in points:
        assert not verification.check(out / "points" / point.name).misfits


def test_stop_signal_ends_all_points_after_the_present_chunk_and_the_sweep_can_go_on(base, alone, tmp_path):
    def stop(point, records):
        signal.raise_signal(signal.SIGTERM)

    out = tmp_path / "out"
    points = open_sweep(base, out)
    assert sweeps.compute(points, out, sweeps.Observers(on_records=stop), share=SHARE) == ({}, "SIGTERM")
    assert [len(fedvg_jax.History.load(out / "points" / p.name).records) for p in points[:2]] == [1, 1]
    results, stopped_by = sweeps.compute(points, out, share=SHARE)
    assert stopped_by is None
    assert {name: timeless(r.records) for name, r in results.items()} == histories(alone)


def test_point_that_cannot_write_its_folder_fails_alone(base, alone, tmp_path):
    out = tmp_path / "out"
    points = open_sweep(base, out)
    folder = out / "points" / points[1].name
    (folder / "history.jsonl").mkdir(parents=True)
    results, _ = sweeps.compute(points, out, share=SHARE)
    failed = results.pop(points[1].name)
    assert isinstance(failed, Failure) and failed.kind == "failed"
    assert {name: timeless(r.records) for name, r in results.items()} == {
        name: records for name, records in histories(alone).items() if name != points[1].name
    }


def test_auto_shares_a_program_only_where_it_is_measured_to_be_faster(base, monkeypatch):
    made, calls = sweep_points.make_points(make_points(base)[0]).points, []
    monkeypatch.setattr(joint_points, "compute", lambda joint, *rest: calls.append(joint.num_places))
    for pays in (False, True):
        monkeypatch.setattr(joint_points, "pays", lambda joint, sims, pays=pays: pays)
        sweeps.compute(made, None, share=sweeps.Sharing(3, is_measured=True))
    assert calls == [3]


def test_settings_that_cannot_share_a_program_are_refused_in_one_line(base):
    blocks = dataclasses.replace(base, hold=2)
    with pytest.raises(UsageError, match=r"vectorize 2 beside hold 2, which .*; use --hold 0; or use --vectorize auto"):
        fedvg_jax.run_sweep(blocks, AXES, vectorize=2)
    with pytest.raises(UsageError, match="vectorize must be off, auto or a number"):
        fedvg_jax.run_sweep(base, AXES, vectorize="some")
