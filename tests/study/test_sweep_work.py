"""What a sweep without progress reports: a line for each problem, with the name of the point."""

import dataclasses
import json
import sys

import linear
import pytest

import fedvg_jax as fv
from fedvg_jax.views import tracking

CONFIG = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=0, devices="1")
POINTS = ["seed=0", "seed=1"]


def sweep(axes, config=CONFIG, **arguments):
    return fv.run_sweep(config, axes, data=linear.data(), task=linear.TASK, **arguments)


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


def test_data_sets_that_the_settings_name_are_no_object_of_a_run(tmp_path):
    """A run of given data is told apart by that data, and the report would refuse two of them as one study."""
    pytest.importorskip("scipy", reason="reports need the report extra")
    from fedvg_jax.study.collect import collect

    config = dataclasses.replace(CONFIG, model="linear")
    fv.run_sweep(config, {"dataset": ["digits", "breast_cancer"]}, tmp_path / "s")
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "s").rglob("manifest.json")]
    assert len(manifests) == 2 and not any("data" in manifest["given"] for manifest in manifests)
    assert len(collect([tmp_path / "s"]).scenarios) == 2
