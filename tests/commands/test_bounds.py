"""Bounds: accuracies of the same data and model without a federation."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest

import fedvg_jax
from fedvg_jax import bounds, config
from fedvg_jax.config import Tuning, Validation
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import population, simulation

SETTINGS = replace(
    config.Config(), clients=3, join_ratio=2 / 3, rounds=3, local_epochs=2, alpha=1.0, lr=0.1, model="linear"
)


@pytest.fixture(scope="module")
def measured():
    """Bounds under settings of the federation, which must not matter."""
    federation = {"weighting": "fedvg", "dropout": 0.5, "tuning": Tuning(steps=3, lr=0.3)}
    federation |= {"local": "^classifier/", "record": "personal_accuracy", "stop_at": "val_accuracy 0.1"}
    federation["robust"] = "clipped_mean:0.01"
    settings = replace(SETTINGS, **federation)
    calls = []
    results = bounds.measure(settings, lambda bound, total: calls.append((bound, total)))
    assert calls == [(bound, 5) for bound in results]
    return settings, results


def test_bounds_are_pooled_validation_and_every_client(measured):
    settings, results = measured
    arrays = simulation.load_data(settings)
    parts = population.make_partition(settings, arrays)
    sizes = [sum(map(len, parts.train)), sum(map(len, parts.val)), *map(len, parts.train)]
    models = [("pooled", None), ("validation", None), ("alone", 0), ("alone", 1), ("alone", 2)]
    assert [bound[:3] for bound in results] == [(*model, size) for model, size in zip(models, sizes, strict=True)]


def test_bound_equals_a_federation_of_one_client(measured):
    """It trains for 3 rounds x 2/3, as many as a client takes part in."""
    settings, results = measured
    parts = population.make_partition(settings, simulation.load_data(settings))
    others = ([np.concatenate(part)] for part in parts[1:])
    alone = replace(SETTINGS, clients=1, join_ratio=1.0, rounds=2, eval_every=2)
    history = fedvg_jax.run(alone, partition=([parts.train[1]], *others))
    assert results[3].test_accuracy == history.records[-1]["test_accuracy"]


@pytest.mark.usefixtures("traced")
def test_command_writes_the_results_that_it_shows(tmp_path, capsys):
    flags = f"--clients 2 --join-ratio 1 --rounds 1 --local-epochs 1 --alpha 1 --out {tmp_path}/b"
    assert bounds.main(flags.split()) == 0
    written = json.loads((tmp_path / "b" / "bounds.json").read_text())
    assert [bound["kind"] for bound in written["bounds"]] == ["pooled", "validation", "alone", "alone"]
    shown = capsys.readouterr().out
    assert all(f"{100 * value:.2f}%" in shown for value in written["summary"].values())
    assert bounds.main(flags.split()) == 2  # the folder is taken
    assert bounds.main(["--alpha", "-1"]) == 2


@pytest.mark.usefixtures("traced")
def test_settings_that_one_client_cannot_have_are_those_of_the_federation():
    """Of 20 clients at alpha 0.05 some hold fewer rows than a minibatch, and share the program of the pooled model."""
    federation = {"join_ratio": 1.0, "weighting": "uniform", "robust": "krum"}
    few = {"clients": 20, "rounds": 1, "local_epochs": 1, "alpha": 0.05}
    settings = config.check(replace(SETTINGS, **few, **federation))
    sizes = [bound.num_samples for bound in bounds.measure(settings) if bound.kind == "alone"]
    assert len(sizes) == 20 and min(sizes) < settings.batch_size
    assert len(bounds.measure(replace(SETTINGS, partition="balanced_client", **few))) == 22


@pytest.mark.usefixtures("traced")
def test_settings_of_the_federation_are_refused_as_flags_and_allowed_in_a_file(tmp_path, capsys):
    """A file is shared with the other commands."""
    for flag in ["--method fedavg", "--local ^classifier/", "--fedvg.norm l2", "--attack sign_flip", "--lanes 2"]:
        assert bounds.main(flag.split()) == 2
        assert f"{flag.split()[0]} is not an option of bounds" in capsys.readouterr().err
    (tmp_path / "run.toml").write_text('method = "ditto"\nlanes = 2\nclients = 2\nalpha = 1.0\nrounds = 1\n')
    assert bounds.main(["--config", f"{tmp_path}/run.toml", "--out", f"{tmp_path}/b"]) == 0


@pytest.mark.usefixtures("traced")
def test_external_validation_set_needs_no_validation_rows_of_clients(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros((20, 8, 8), np.uint8), y=np.repeat(np.arange(10), 2))
    source = Validation(source="npz", data_dir=tmp_path / "other.npz")
    settings = replace(
        SETTINGS,
        val_ratio=0.0,
        best_on="held_out",
        departures="no-external-copies",
        validation=source,
        rounds=1,
        local_epochs=1,
    )
    sizes = {bound.kind: bound.num_samples for bound in bounds.measure(settings)}
    assert sizes["validation"] == 10 and sizes["pooled"] > 1000


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_model_that_diverges_is_an_error_or_is_marked(nonfinite, tmp_path, monkeypatch, capsys):
    records = [{"round": i, "weights": [1.0], "train_loss": 1.0} for i in (1, 2, 3)]
    records[1]["diverged"] = [0]
    records[2]["test_accuracy"] = 0.1
    monkeypatch.setattr(chunks, "run_chunks", lambda *args, **named: iter([(None, records[:2]), (None, records[2:])]))
    flags = f"--clients 2 --alpha 1 --rounds 3 --nonfinite {nonfinite} --out {tmp_path}/b"
    code = bounds.main(flags.split())
    shown = capsys.readouterr()
    if nonfinite == "raise":
        assert code == 2 and "the model of all rows diverged: round 2: clients [0] diverged" in shown.err
        return
    assert code == 0 and "the model of client 1 diverged, first in round 2" in shown.out
    written = json.loads((tmp_path / "b" / "bounds.json").read_text())
    assert [bound["diverged"] for bound in written["bounds"]] == [2, 2, 2, 2]


@pytest.mark.usefixtures("traced")
def test_a_loss_that_explodes_is_an_error_as_in_a_run(tmp_path, monkeypatch, capsys):
    exploded = {"round": 1, "weights": [1.0], "train_loss": 1e6, "test_accuracy": 0.1}
    monkeypatch.setattr(chunks, "run_chunks", lambda *args, **named: iter([(None, [exploded])]))
    assert bounds.main(f"--clients 2 --alpha 1 --rounds 1 --out {tmp_path}/b".split()) == 2
    assert "the model of all rows diverged: round 1: the training loss 1e+06 is over 1000" in capsys.readouterr().err


@pytest.mark.parametrize("clients", [3, 5])
def test_bounds_train_for_the_rounds_that_a_client_takes_part_in(clients, monkeypatch):
    """A cohort is a whole number of clients: of 3 at join ratio 0.2 one, of 5 at 0.5 two."""
    settings = replace(SETTINGS, clients=clients, join_ratio={3: 0.2, 5: 0.5}[clients], rounds=30)
    trained = []

    def chunk(sim, *args, **named):
        trained.append(sim.config.rounds)
        return iter([(None, [{"round": 1, "weights": [1.0], "train_loss": 1.0, "test_accuracy": 0.1}])])

    monkeypatch.setattr(chunks, "run_chunks", chunk)
    monkeypatch.setattr(chunks, "compile_programs", lambda sim: None)
    bounds.measure(settings)
    assert set(trained) == {{3: 10, 5: 12}[clients]}


def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(bounds, "measure", lambda *_: pytest.fail("trains"))
    assert bounds.main(["--out", str(tmp_path / "file" / "b")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_clients_of_one_schedule_shape_may_be_larger_than_the_data():
    """An external D_val has rows of its own."""
    settings = replace(SETTINGS, local_epochs=60, clients=1, join_ratio=1.0)
    sim = simulation.simulation(settings)
    rows, made = np.arange(5000, dtype=np.int32), []
    for train in (rows, rows[:32]):
        parts = sim.partition._replace(train=[train])
        made.append(simulation.make_schedule(settings, sim.arrays, parts, sim, len(rows))(0))
    assert made[0].rows.shape == made[1].rows.shape


def test_a_signal_leaves_no_empty_folder(tmp_path, monkeypatch):
    """With the line that the process would end with."""
    said = []

    @contextlib.contextmanager
    def say_at_once(message):
        said.append(message)
        yield

    def measure(settings, on_bound):
        assert list((tmp_path / "runs").iterdir())
        raise KeyboardInterrupt(said[0]())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bounds.stop_signals, "say_at_once", say_at_once)
    monkeypatch.setattr(bounds, "measure", measure)
    assert bounds.main([]) == 130 and not list((tmp_path / "runs").iterdir())
