"""Exports of the final model: a safetensors file, or a folder as on the Hugging Face hub.

The folder holds model.safetensors, config.json, and README.md: a model card with the results and the provenance of the
run. `--pretrained DIR` reads it. No jax before a model is written.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvg_jax import config as configs
from fedvg_jax.config import Config, method_name, sweep_points
from fedvg_jax.config.help import show_default
from fedvg_jax.config.passed import with_passed
from fedvg_jax.config.uses import unused
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.data import user_data
from fedvg_jax.runs.history import History

if TYPE_CHECKING:
    from fedvg_jax.data.arrays import Arrays
    from fedvg_jax.runs.simulation import Simulation

CARD = "README.md"
DESCRIPTION = "config.json"
LIBRARY = "fedvg_jax"

PLACES = ("data_dir", "validation.data_dir", "partition_file", "pretrained")
"""Settings that name files of this machine, which an export does not tell."""

_METHOD = {"algorithm", "weighting"}
"""Objects from Python that make the method of a run."""

SHAPES = ("dataset", "image_size", "stem", "norm", "normalise")
"""Settings that decide which tensors a named model has, or what they were trained to take."""

PIPELINES = {"images": "image-classification", "rows": "tabular-classification", "sequences": "text-generation"}
"""Kind of a data set's rows -> the hub's name of the task."""

RESULTS = {
    "test accuracy, final round": "test_accuracy_final",
    "test accuracy, round best on validation": "test_accuracy_at_best_val",
    "test accuracy, maximum (chosen on test)": "test_accuracy_max",
    "always answering the largest class": "majority_accuracy",
    "test loss, final round": "test_loss_final",
}
"""Row of the card's table -> key of summary.json."""


def is_folder(path: Path) -> bool:
    """Returns whether an export to `path` writes a folder: it is one, or it does not exist and has no suffix."""
    return path.is_dir() or (not os.path.lexists(path) and not path.suffix)


def check_target(path: Path) -> None:
    """Raises UsageError if the final model cannot be written to `path`: nothing else may be overwritten."""
    if not is_folder(path):
        files.export_target(path)
        return
    if path.is_dir():
        if any(path.iterdir()) and not _is_own(path):
            raise UsageError(f"export {path}: the folder holds other files; name a new folder, or FILE.safetensors")
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f"export {path}: no permission to write to it; name another folder")
    elif not path.parent.is_dir():
        raise UsageError(f"export {path}: no such folder {path.parent}; make it, or name another folder")
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"export {path}: no permission to write to {path.parent}; name another folder")


def export(path: Path, sim: Simulation, history: History) -> None:
    """Writes the final model of a run.

    Args:
        path: a folder, see `is_folder`, or a safetensors file.
        sim: the simulation.
        history: its results.

    Raises:
        UsageError: it cannot be written.
    """
    from fedvg_jax.models import pretrained

    if not is_folder(path):
        pretrained.save(path, history.variables, sim.config.model)
        return
    with files.writing(path, "--export"):
        path.mkdir(exist_ok=True)
        content = description(sim.config, sim.arrays, sim.given)
        files.replace(path / DESCRIPTION, json.dumps(content, indent=2) + "\n")
        files.replace(path / CARD, card(sim, history))
    pretrained.save(path / pretrained.FILE, history.variables, sim.config.model)


def description(config: Config, arrays: Arrays, given: Collection[str] = ()) -> dict[str, Any]:
    """Returns the content of config.json: what is needed to build the model, and the settings of the run.

    Args:
        config: of the run.
        arrays: the data set.
        given: what the caller passed in place of the config's.
    """
    settings = _settings(config, given)
    return {
        "library_name": LIBRARY,
        "architecture": config.model,
        "num_classes": len(arrays.class_names),
        "class_names": list(arrays.class_names),
        "input_shape": list(arrays.x.shape[1:]),
        "normalise": config.normalise,
        "settings": {name: sweep_points.plain(value) for name, value in settings.items()},
    }


def _settings(config: Config, given: Collection[str] = ()) -> dict[str, Any]:
    """Returns the settings that the run used and that can affect its results, without paths of this machine.

    Objects that the caller passed stand in place of the settings that they replace, as "own weighting".
    """
    left_out = {*sweep_points.HOST, *PLACES, *unused(config)}
    settings = {name: value for name, value in configs.flatten(config).items() if name not in left_out}
    prefix, colon, folder = config.dataset.partition(":")
    if Path(folder).is_absolute():
        settings["dataset"] = f"{prefix}{colon}{Path(folder).name}"
    return with_passed(settings, given)


def card(sim: Simulation, history: History) -> str:
    """Returns the model card, Markdown below a header in YAML."""
    config, settings = sim.config, _settings(sim.config, sim.given)
    method = f"{settings['algorithm']}, {settings['weighting']}" if _METHOD & sim.given else method_name(config)
    name = f"{settings['model']}-{sim.arrays.name}-{method}"
    parts = [
        f"---\n{_header(settings, sim.arrays, history.summary)}---\n",
        f"# {_escape(name)}",
        _introduction(sim, history),
        "## Results",
        _table(("on the clients' test rows", "value"), _results(history.summary)),
        "The maximum is chosen on the test rows and is optimistic. The round best on validation is chosen on the shared"
        " validation set" + (", which the weights also use." if config.select == "shared" else "."),
        "## Settings",
        _table(("setting", "value"), {name: show_default(value) for name, value in settings.items()}),
        "## Provenance",
        _table(("source", "value"), _provenance(history)),
        "## Use",
        "Start a run from these weights, under a new head:",
        f"```sh\npython -m fedvg_jax.sim {_model_options(settings)} --pretrained FOLDER\n```",
        _inputs(sim),
    ]
    return "\n\n".join(parts) + "\n"


def _model_options(settings: Mapping[str, Any]) -> str:
    """Returns the options that build the exported model, as far as they are not the defaults; DATA for own arrays."""
    defaults = configs.flatten(Config())
    used = {name: settings[name] for name in SHAPES if name in settings and settings[name] != defaults[name]}
    used |= {"dataset": "DATA"} if used.get("dataset") == "own data" else {}
    options = [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in used.items()]
    return " ".join(["--model", settings["model"], *options])


def _inputs(sim: Simulation) -> str:
    """Returns what the model takes, in one paragraph."""
    shape, kind = " x ".join(map(str, sim.arrays.x.shape[1:])), user_data.kind(sim.arrays)
    if kind == "sequences":
        return f"Inputs are sequences of {shape} numbers of characters; `config.json` lists the characters."
    if kind == "rows":
        return f"Inputs are rows of {shape} numbers. `config.json` lists the classes."
    normalised = f" and normalised by `{sim.config.normalise}`" if sim.config.normalise != "none" else ""
    return f"Images are divided by 255{normalised}; they are {shape}. `config.json` lists the classes."


def _header(settings: Mapping[str, Any], arrays: Arrays, summary: Mapping[str, Any]) -> str:
    """Returns the lines of the YAML header; texts are quoted as in JSON, which YAML contains."""
    dataset = arrays.name
    entries: dict[str, Any] = {
        "library_name": LIBRARY,
        "tags": ["federated-learning", "jax", "flax", settings["algorithm"]],
    }
    accuracy = summary.get("test_accuracy_final")
    if accuracy is not None:
        task = {"type": PIPELINES[user_data.kind(arrays)]}
        metrics = [{"type": "accuracy", "value": accuracy, "name": "test accuracy, final round"}]
        entries |= {"pipeline_tag": task["type"], "metrics": ["accuracy"]}
        result = {"task": task, "dataset": {"name": dataset, "type": dataset}, "metrics": metrics}
        entries["model-index"] = [{"name": settings["model"], "results": [result]}]
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in entries.items())


def _introduction(sim: Simulation, history: History) -> str:
    config, summary, settings = sim.config, history.summary, _settings(sim.config, sim.given)
    stopped = f" It was stopped by {summary['stopped_by']} before its end." if summary.get("stopped_by") else ""
    data = f"{len(sim.arrays.y):,} {user_data.kind(sim.arrays)}, {len(sim.arrays.class_names)} classes"
    return (
        f"The global model after {len(history.records)} rounds of simulated federated learning on"
        f" {_escape(sim.arrays.name)} ({data}) among"
        f" {config.clients} clients: algorithm {settings['algorithm']}, weights"
        f" {_escape(settings['weighting'])}.{stopped}"
    )


def _results(summary: Mapping[str, Any]) -> dict[str, str]:
    named = {label: (key, summary.get(key)) for label, key in RESULTS.items()}
    return {
        label: f"{value:.4g}" if "loss" in key else f"{value:.2%}"
        for label, (key, value) in named.items()
        if value is not None
    }


def _provenance(history: History) -> dict[str, str]:
    """Returns versions, commit, device and digests, from the manifest of the run folder where there is one."""
    manifest = {}
    if history.folder is not None and (history.folder / "manifest.json").is_file():
        manifest = files.read_object(history.folder / "manifest.json")
    runs: Sequence[Any] = manifest.get("runs", [])
    last = runs[-1] if runs else {}
    git = last.get("git") or {}
    entries = {
        **{f"version of {name}": version for name, version in history.summary.get("versions", {}).items()},
        "commit": git.get("commit", "") + (" with changes" if git.get("changed") else ""),
        "device": history.summary.get("device"),
        **{f"digest of the {name}": manifest.get(name) for name in ("data", "partition", "validation")},
        "parts of the run": str(len(runs)) if runs else "",
    }
    return {name: str(value) for name, value in entries.items() if value}


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [head, ("---", "---"), *((_escape(name), _escape(value)) for name, value in rows.items())]
    return "\n".join(f"| {name} | {value} |" for name, value in lines)


def _escape(text: str) -> str:
    r"""Returns a text that Markdown shows as it is, on one line.

    >>> print(_escape("a_b|<i>"))
    a\_b\|&lt;i&gt;
    """
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#!~])", r"\\\1", line)


def _is_own(path: Path) -> bool:
    """Returns whether a folder is an earlier export."""
    try:
        return files.read_object(path / DESCRIPTION).get("library_name") == LIBRARY
    except UsageError:
        return False
