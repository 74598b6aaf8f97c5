"""Trackers: what they are given, resumed runs, and failures. Real packages are tried where they are installed."""

import dataclasses
import json
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax.views.tracking import Writer

FAKE = "fedvg_jax.views.tracking.wandb_run"


def a_run(config, fails_after=None):
    """Runs linear regression with an custom weighting; a callback raises KeyboardInterrupt after a round."""

    def fail(record, state):
        if record["round"] == fails_after:
            raise KeyboardInterrupt

    return fv.run(config, callbacks=[fail], weighting=fv.weightings.uniform(), **linear.GIVEN)


def resumed(config):
    """Runs two more rounds from the last checkpoint."""
    return a_run(dataclasses.replace(config, rounds=5, resume=config.out, out=None))


@pytest.fixture
def fake(monkeypatch):
    """A tracker without a package; returns what it was given, by the name of the call."""
    calls = []

    def open_writer(run):
        calls.append(("open", run))
        identity = {"id": run.stored.get("id", f"run {len(calls)}")}
        log = lambda scalars: calls.append(("log", scalars))  # noqa: E731
        return Writer(
            "nowhere", identity, log, close=lambda *ending: calls.append(("close", ending))
        )

    module = types.ModuleType(FAKE)
    module.open_writer = open_writer
    package = types.ModuleType("wandb")
    package.__spec__ = ModuleSpec("wandb", None)
    for each in (module, package):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return calls


def settings(tmp_path, **changes):
    own = {
        "out": tmp_path / "sweep" / "trials" / "alpha=1",
        "track": "wandb",
        "rounds": 4,
    } | changes
    return fv.Config(clients=4, alpha=10.0, local_epochs=1, checkpoint_every=1, devices="1", **own)


def rounds_of(calls):
    return [number for name, value in calls if name == "log" for number in value]


def test_tracker_gets_name_settings_every_round_and_the_end(fake, tmp_path):
    history = a_run(settings(tmp_path))
    assert [name for name, _ in fake] == ["open", *4 * ["log"], "close"] and rounds_of(fake) == [
        1,
        2,
        3,
        4,
    ]
    run = fake[0][1]
    assert (run.name, run.group, run.stored["rounds"]) == ("alpha=1", "sweep", 0)
    assert (run.settings["weighting"], run.settings["algorithm"]) == ("custom weighting", "fedavg")
    assert run.settings["rounds"] == 4 and not {"out", "track", "fedprox.mu"} & run.settings.keys()
    record, logged = history.records[-1], fake[4][1][4]
    assert (logged["train/loss"], logged["test/loss"]) == (
        record["train_loss"],
        record["test_loss"],
    )
    assert logged["clients/effective"] == pytest.approx(len(record["weights"]))
    status, numbers, num_rounds = fake[-1][1]
    assert (status, numbers["test_loss_final"], num_rounds) == ("finished", record["test_loss"], 4)


def test_resumed_run_goes_on_in_the_same_tracked_run(fake, tmp_path):
    config = settings(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        a_run(config, fails_after=3)
    resumed(config)
    opened = [value for name, value in fake if name == "open"]
    assert opened[1].stored["id"] == "run 1"
    assert rounds_of(fake) == [1, 2, 3, 4, 5]
    assert [value[0] for name, value in fake if name == "close"] == ["failed", "finished"]


@pytest.mark.parametrize("when", ["open_writer", "log", "close"])
def test_failure_of_a_tracker_is_one_line_and_the_run_goes_on(fake, tmp_path, caplog, when):
    module = sys.modules[FAKE]

    def fail(*_):
        raise ValueError("no\nanswer")

    opened = module.open_writer
    module.open_writer = (
        fail if when == "open_writer" else lambda run: opened(run)._replace(**{when: fail})
    )
    assert len(a_run(settings(tmp_path)).records) == 4
    (failed,) = (
        record.getMessage() for record in caplog.records if "failed" in record.getMessage()
    )
    assert "wandb" in failed and "no answer" in failed and "\n" not in failed


# --- real packages


def test_events_are_read_back_by_tensorboard_also_of_a_resumed_run(tmp_path):
    """Whose number of tracked rounds was not written before a crash."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = settings(tmp_path, track="tensorboard")
    with pytest.raises(KeyboardInterrupt):
        a_run(config, fails_after=3)
    stored = config.out / "tracking" / "runs.json"
    content = json.loads(stored.read_text())
    content["tensorboard"]["rounds"] -= 1
    stored.write_text(json.dumps(content))
    history = resumed(config)
    events = accumulators.EventAccumulator(
        str(config.out / "tracking"), size_guidance={"images": 0}
    )
    events.Reload()
    losses = {e.step: e.value for e in events.Scalars("train/loss")}
    assert losses == pytest.approx(
        {record["round"]: record["train_loss"] for record in history.records}
    )
    last = events.Scalars("summary/test_loss_final")[-1]
    assert (last.step, last.value) == (5, pytest.approx(history.summary["test_loss_final"]))
    assert b'"rounds": 4' in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0]


@pytest.mark.slow
def test_wandb_offline_files_are_of_one_run(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb", reason="needs the wandb extra")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    config = settings(tmp_path, track="wandb")
    with pytest.raises(KeyboardInterrupt):
        a_run(config, fails_after=3)
    resumed(config)
    assert not [record for record in caplog.records if "failed" in record.getMessage()]
    files = sorted((config.out / "tracking" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.stem for file in files}) == 1 and len(files) == 2
