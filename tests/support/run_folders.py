"""Run folders with made-up numbers, for the tests of reports; nothing is trained."""

import itertools
import json
from pathlib import Path

import numpy as np

from fedvg_jax import config
from fedvg_jax.config import Config
from fedvg_jax.config.options import partition_seed
from fedvg_jax.runs.record import history
from fedvg_jax.study import sweep_folder, sweep_trials

CLASSES = 3


def write_run(
    folder: Path, accuracies=(0.5, 0.7, 0.8), *, rounds=None, layers=(), fields=None, **settings
) -> Path:
    """Writes a run of one round per accuracy, each evaluated; `rounds` is what the config wants.

    Args:
        folder: created.
        accuracies: test accuracy of every round, from 0 to 1; None for a round without evaluation.
        rounds: of the config; by default the number of accuracies.
        layers: names of the columns of `layer_shares`, if `fields` have such.
        fields: round (from 1) -> further entries of its record.
        settings: of `Config`.
    """
    run = settings_of(rounds=rounds or len(accuracies), **settings)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config.to_json(run))
    rng, fields = np.random.default_rng(run.seed), fields or {}
    for number, accuracy in enumerate(accuracies, 1):
        history.append(folder, [_record(number, accuracy, rng) | fields.get(number, {})])
    write_json(folder / "partition.json", partition(run.alpha))
    manifest = {"data": run.dataset, "partition": f"{run.alpha}-{partition_seed(run)}", "runs": []}
    write_manifest(folder, manifest)
    if layers:
        write_json(folder / "layers.json", layers)
    if len(accuracies) == run.rounds:
        write_summary(folder)
    return folder


def write_summary(folder: Path, **others) -> None:
    """Writes the summary of the history, as a run does, with other entries."""
    records = history.read(folder)
    summary = {"rounds": len(records), "stopped_by": None, **history.summarise(records)}
    write_json(folder / "summary.json", summary | history.bytes_sent(records) | others)


def write_manifest(folder: Path, content: dict) -> None:
    """Writes manifest.json."""
    write_json(folder / "manifest.json", content)


SAMPLES = [4, 12, 6, 10]
"""Rows of the clients of every run."""


def partition(alpha=0.05):
    """Returns the content of partition.json; alpha changes the classes of client 3."""
    spread = round(10 * alpha / (1 + alpha))
    return {
        "partition": "dirichlet",
        "clients": 4,
        "samples": SAMPLES,
        "class_names": ["a", "b", "c"],
        "counts": [[4, 0, 0], [0, 8, 4], [2, 2, 2], [spread, 0, 10 - spread]],
        "validation": {"source": "clients", "samples": 7, "counts": [3, 3, 1]},
    }


def _record(index, accuracy, rng):
    clients = sorted(rng.choice(4, 3, replace=False).tolist())
    record = {
        "round": index,
        "clients": clients,
        "weights": rng.dirichlet(np.ones(3)).round(6).tolist(),
        "scores": (10 * rng.random(3) + 1).round(6).tolist(),
        "num_samples": [SAMPLES[client] for client in clients],
        "train_loss": 1.0 / index,
        "seconds": 0.5,
    }
    if accuracy is not None:
        for part in ("val", "test"):
            record[f"{part}_loss"] = 1 - accuracy
            record[f"{part}_accuracy"] = accuracy
            record[f"{part}_majority_accuracy"] = 0.4
    return record


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value))


def write_sweep(folder: Path, axes: dict, accuracy, *, title="a sweep", **settings) -> Path:
    """Writes sweep.json and a run for every trial.

    Args:
        folder: created.
        axes: name -> values.
        accuracy: values -> test accuracies of the rounds; None for a trial without a folder.
        title: of the sweep.
        settings: of all trials.
    """
    named, runs, trials = {}, {}, {}
    for values in itertools.product(*axes.values()):
        trial = dict(zip(axes, values, strict=True))
        name = ",".join(f"{setting}={value}" for setting, value in trial.items())
        named[name], runs[name] = trial, accuracy(trial)
    rounds = max((len(run) for run in runs.values() if run), default=1)
    folder.mkdir(parents=True)
    for name, values in named.items():
        own = {k: v for k, v in (settings | values).items() if not k.startswith("hyper.")}
        if "method" in own and own.get("weighting") == "native":
            del own["weighting"]  # the method's own, as in a sweep
        trials[name] = values, settings_of(**{"rounds": rounds} | own)
        if runs[name] is not None:
            write_run(folder / "trials" / name, runs[name], **own)
    write_document(folder, [{name: values} for name, values in axes.items()], trials, title)
    return folder


def settings_of(**settings) -> Config:
    """Returns the settings of `write_run`."""
    return Config(**{"clients": 4, "join_ratio": 0.75, "eval_every": 1, **settings})


def problems(group, kind: str) -> list[str]:
    """Returns the problems of one kind that runs of a group have."""
    return list(group.rows.loc[group.rows["kind"] == kind, "problem"])


def write_document(folder: Path, axes: list[dict], trials: dict, title="") -> None:
    """Writes sweep.json of axes, setting -> values, and of trials, name -> (values, settings)."""
    told = (*sweep_trials.DATA_FOLDERS, "fidelity")
    listed = {}
    for name, (values, run) in trials.items():
        names = {n: v for n, v in values.items() if n in told or n.startswith("hyper.")}
        listed[name] = sweep_trials.Trial(name, values, run, names=names)
    names = [name for axis in axes for name in axis]
    sweep_folder.write(folder, sweep_folder.Stored(title, names, listed))
