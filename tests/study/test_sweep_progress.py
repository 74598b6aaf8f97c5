"""What a sweep reports: the time left, and without progress a line for each problem with the name of the point."""

import dataclasses
import io
import json
import sys

import pytest
from rich.console import Console
from support import linear

import fedvg_jax as fv
from fedvg_jax.study import sweep_progress
from fedvg_jax.study.sweep_folder import Failure
from fedvg_jax.study.sweep_points import Point
from fedvg_jax.views import tracking

CONFIG = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1")
POINTS = ["seed=0", "seed=1"]


def sweep(axes, config=CONFIG, **arguments):
    return fv.run_sweep(config, axes, **linear.GIVEN, **arguments)


def test_failed_trackers_are_logged_with_the_names_of_their_points(monkeypatch, caplog):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "fedvg_jax.views.tracking.wandb_run", None)
    results = sweep({"seed": "0:2"}, track="wandb")
    lines = [record.getMessage() for record in caplog.records]
    assert [result.name for result in results] == POINTS
    assert [line.partition(": ")[0] for line in lines] == POINTS
    assert all("tracker wandb failed, and the run continues without it" in line for line in lines)


def test_every_point_s_tracker_is_checked_before_the_first_run(monkeypatch):
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(fv.UsageError, match="track tensorboard writes into the run folder; name one by out"):
        sweep({"seed": "0:2", "track": ["tensorboard"]})


@pytest.mark.usefixtures("traced")
def test_data_sets_that_the_settings_name_are_no_object_of_a_run(tmp_path):
    """Their manifests name no given data; with two of them the report would refuse the runs as one study."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    from fedvg_jax.study.collect import collect

    config = dataclasses.replace(CONFIG, model="linear")
    fv.run_sweep(config, {"dataset": ["digits", "breast_cancer"]}, tmp_path / "s")
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "s").rglob("manifest.json")]
    assert len(manifests) == 2 and not any("data" in manifest["given"] for manifest in manifests)
    assert len(collect([tmp_path / "s"]).scenarios) == 2


def test_time_left_is_that_of_the_points_left_at_the_pace_of_those_that_ended_here_and_elsewhere(monkeypatch):
    """Eight points, of which one was done before; two end in 100 s, and so the other five in 250 s."""
    now, text = [0.0], io.StringIO()
    monkeypatch.setattr(sweep_progress.time, "perf_counter", lambda: now[0])
    points = [Point(f"seed={i}", {"seed": i}, fv.Config(seed=i, rounds=10)) for i in range(8)]
    console = Console(file=text, width=200)
    with sweep_progress.sweep_progress(console, len(points), 1, lambda point: points[2:3]) as observers:
        observers.on_start(points[1])
        now[0] = 100.0
        observers.on_end(points[1], Failure("diverged", 3, "not finite"))
    assert text.getvalue() == "3/8  seed=1: diverged in round 3 (not finite), about 4 min left\n"
