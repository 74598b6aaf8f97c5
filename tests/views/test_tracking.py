"""Trackers: what they are given, resumed runs, and failures. Real packages are tried where they are installed."""

import dataclasses

import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax.host import extras
from fedvg_jax.views import tracking


def a_run(config, fails_after=None):
    """Runs linear regression with a custom weighting; a callback raises KeyboardInterrupt after a round."""

    def fail(record, state):
        if record["round"] == fails_after:
            raise KeyboardInterrupt

    return fv.run(
        config, callbacks=[fail], weighting=lambda task: fv.weightings.uniform(), **linear.GIVEN
    )


def stopped_and_resumed(config):
    """Runs four rounds, of which one is lost, then from the last checkpoint to the fifth."""
    with pytest.raises(KeyboardInterrupt):
        a_run(config, fails_after=3)
    return a_run(dataclasses.replace(config, rounds=5, resume=str(config.out), out=None))


@pytest.fixture
def calls(monkeypatch):
    """What a tracker without a package was given, by the name of the call."""
    given = []

    def called(name):
        return lambda *arguments: given.append((name, arguments))

    def open_writer(run):
        given.append(("open", run))
        return tracking.Writer("nowhere", called("log"), called("close"))

    monkeypatch.setitem(tracking.WRITERS, "wandb", open_writer)
    monkeypatch.setattr(extras, "load", lambda *names: None)
    return given


def settings(tmp_path, track="wandb"):
    return fv.Config(
        rounds=4,
        clients=4,
        alpha=10.0,
        local_epochs=1,
        checkpoint_every=1,
        devices="1",
        out=tmp_path / "sweep" / "trials" / "alpha=1",
        track=track,
    )


def test_tracker_gets_name_settings_every_round_and_the_end(calls, tmp_path):
    history = a_run(settings(tmp_path))
    assert [name for name, _ in calls] == ["open", *5 * ["log"], "close"]
    run, logged = calls[0][1], [value for name, value in calls if name == "log"]
    assert (run.name, run.group) == ("alpha=1", "sweep")
    assert (run.settings["weighting"], run.settings["algorithm"]) == ("custom weighting", "fedavg")
    assert run.settings["rounds"] == 4 and not {"out", "track", "fedprox.mu"} & run.settings.keys()
    assert [number for number, _ in logged] == [1, 2, 3, 4, 4]
    for (_, values), record in zip(logged, history.records, strict=False):
        assert values["train/loss"] == record["train_loss"]
    assert logged[-1][1]["summary/test/loss_final"] == history.summary["test_loss_final"]
    assert calls[-1] == ("close", (True,))


def test_resumed_run_reports_its_earlier_rounds_again(calls, tmp_path):
    stopped_and_resumed(settings(tmp_path))
    numbers = [value[0] for name, value in calls if name == "log"]
    assert numbers == [1, 2, 1, 2, 3, 4, 5, 5]
    assert [value for name, value in calls if name == "close"] == [(False,), (True,)]


@pytest.mark.parametrize("when", ["open", "log", "close"])
def test_failure_of_a_tracker_is_one_line_and_the_run_goes_on(
    calls, tmp_path, caplog, monkeypatch, when
):
    def fail(*_):
        raise ValueError("no\nanswer")

    opened = tracking.WRITERS["wandb"]
    failing = fail if when == "open" else lambda run: opened(run)._replace(**{when: fail})
    monkeypatch.setitem(tracking.WRITERS, "wandb", failing)
    assert len(a_run(settings(tmp_path)).records) == 4
    (failed,) = (line for line in caplog.messages if "failed" in line)
    assert "wandb" in failed and "no answer" in failed and "\n" not in failed


# --- real packages


def test_events_are_read_back_by_tensorboard_also_of_a_resumed_run(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = settings(tmp_path, track="tensorboard")
    history = stopped_and_resumed(config)
    events = accumulators.EventAccumulator(str(config.out / "tracking"))
    events.Reload()
    losses = events.Scalars("train/loss")
    assert [event.step for event in losses] == [record["round"] for record in history.records]
    expected = [record["train_loss"] for record in history.records]
    assert [event.value for event in losses] == pytest.approx(expected)
    last = events.Scalars("summary/test/loss_final")[-1]
    assert (last.step, last.value) == (5, pytest.approx(history.summary["test_loss_final"]))


@pytest.mark.slow
def test_wandb_offline_files_are_of_one_run(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb", reason="needs the wandb extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = settings(tmp_path)
    stopped_and_resumed(config)
    assert not [line for line in caplog.messages if "failed" in line]
    files = sorted((config.out / "tracking" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.stem for file in files}) == 1 and len(files) == 2
