"""Trackers: what they are given, resumed runs, and failures. Real packages are tried where they are installed."""

import dataclasses
import sys
import types

import pytest

import fedvg_jax as fv
from fedvg_jax.runs import loop
from fedvg_jax.views import tracking
from fedvg_jax.views.tracking import Writer

FAKE = "fedvg_jax.views.tracking.wandb_run"


def a_run(config, fails_after=None, log=lambda line: None):
    """Runs linear regression with an own weighting; a callback raises KeyboardInterrupt after a round."""
    sim = fv.simulation(config, weighting=lambda task: fv.weightings.uniform(), **linear.GIVEN)

    def fail(record, state):
        if record["round"] == fails_after:
            raise KeyboardInterrupt

    return tracking.run_simulation(sim, log=log, callbacks=[fail])


@pytest.fixture
def fake(monkeypatch):
    """A tracker without a package; returns what it was given, by the name of the call."""
    calls = []

    def open_writer(run):
        calls.append(("open", run))
        identity = {"id": run.stored.get("id", f"run {len(calls)}")}
        log = lambda scalars: calls.append(("log", scalars))  # noqa: E731
        return Writer("nowhere", identity, log, close=lambda *ending: calls.append(("close", ending)))

    module = types.ModuleType(FAKE)
    module.open_writer = open_writer
    monkeypatch.setitem(sys.modules, FAKE, module)
    return calls


def settings(tmp_path, **changes):
    return fv.Config(**{"out": tmp_path / "sweep" / "points" / "alpha=1", "track": "wandb", "rounds": 4, **changes})


def rounds_of(calls):
    return [number for name, value in calls if name == "log" for number in value]


def test_tracker_gets_name_settings_every_round_and_the_end(fake, tmp_path, monkeypatch):
    a_run(monkeypatch, settings(tmp_path), given={"weighting": ""})
    assert [name for name, _ in fake] == ["open", "log", "log", "close"] and rounds_of(fake) == [1, 2, 3, 4]
    run = fake[0][1]
    assert (run.name, run.group, run.stored["rounds"]) == ("alpha=1", "sweep", 0)
    assert (run.settings["weighting"], run.settings["algorithm"]) == ("own weighting", "fedavg")
    assert run.settings["rounds"] == 4 and not {"out", "track", "fedprox.mu"} & run.settings.keys()
    expected = {"train/loss": 1.0, "test/loss": 2.0, "test/accuracy": 0.5, "seconds": 0.1, "clients/effective": 2.0}
    assert fake[1][1] == {1: expected}
    assert fake[-1][1] == ("finished", {"test_accuracy_final": 0.5}, 4)


def test_resumed_run_goes_on_in_the_same_tracked_run(fake, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        a_run(monkeypatch, settings(tmp_path), last=3, error=KeyboardInterrupt())
    a_run(monkeypatch, settings(tmp_path), first=3, last=5)
    opened = [value for name, value in fake if name == "open"]
    assert opened[1].stored["id"] == "run 1" and opened[1].stored["rounds"] == 3
    assert rounds_of(fake) == [1, 2, 3, 4, 5]
    assert [value[0] for name, value in fake if name == "close"] == ["failed", "finished"]


@pytest.mark.parametrize("when", ["open_writer", "log", "close"])
def test_failure_of_a_tracker_is_one_line_and_the_run_goes_on(fake, tmp_path, monkeypatch, when):
    module, lines = sys.modules[FAKE], []

    def fail(*_):
        raise ValueError("no\nanswer")

    opened = module.open_writer
    module.open_writer = fail if when == "open_writer" else lambda run: opened(run)._replace(**{when: fail})
    history = a_run(monkeypatch, settings(tmp_path), log=lines.append)
    assert len(history.records) == 4
    failed = [line for line in lines if "failed" in line]
    assert failed == ["tracker wandb failed, and the run continues without it: no answer"]


# --- real packages


def test_events_are_read_back_by_tensorboard_also_of_a_resumed_run(tmp_path, monkeypatch):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = settings(tmp_path, track="tensorboard")
    with pytest.raises(KeyboardInterrupt):
        a_run(monkeypatch, config, last=3, error=KeyboardInterrupt())
    stored = config.out / "tracking" / "runs.json"
    stored.write_text(stored.read_text().replace("3", "2"))  # as after a crash before the number was written
    a_run(monkeypatch, config, first=3, last=5)
    events = accumulators.EventAccumulator(str(config.out / "tracking"), size_guidance={"images": 0})
    events.Reload()
    losses = {e.step: e.value for e in events.Scalars("train/loss")}
    assert losses == pytest.approx({i: 1 / i for i in range(1, 6)})
    assert [(e.step, e.value) for e in events.Scalars("summary/test_accuracy_final")][-1] == (5, 0.5)
    assert b'"rounds": 4' in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_mlflow_stores_one_run_of_both_parts(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the mlflow extra")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    config, lines = settings(tmp_path, track="mlflow"), []
    with pytest.raises(KeyboardInterrupt):
        a_run(monkeypatch, config, last=3, error=KeyboardInterrupt(), log=lines.append)
    a_run(monkeypatch, dataclasses.replace(config, rounds=9), first=3, last=5, log=lines.append)
    assert not [line for line in lines if "failed" in line]
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("fedvg_jax").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags["sweep"]) == ("alpha=1", "FINISHED", "sweep")
    assert [m.step for m in client.get_metric_history(run.info.run_id, "train/loss")] == [1, 2, 3, 4, 5]
    assert run.data.tags["rounds"] == "9" and "rounds" not in run.data.params


@pytest.mark.slow
def test_wandb_offline_files_are_of_one_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the wandb extra")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    config, lines = settings(tmp_path, track="wandb"), []
    with pytest.raises(KeyboardInterrupt):
        a_run(monkeypatch, config, last=3, error=KeyboardInterrupt(), log=lines.append)
    a_run(monkeypatch, config, first=3, last=5, log=lines.append)
    assert not [line for line in lines if "failed" in line]
    files = sorted((config.out / "tracking" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.stem for file in files}) == 1 and len(files) == 2
