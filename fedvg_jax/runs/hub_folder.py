"""Exports of the final model: a safetensors file, or a folder as on the Hugging Face hub.

The folder holds model.safetensors, config.json, and README.md, a short model card. `--pretrained DIR` reads it. No jax
before a model is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvg_jax.config import Config
from fedvg_jax.config.uses import used, with_passed
from fedvg_jax.core import files
from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record.history import History

if TYPE_CHECKING:
    from fedvg_jax.runs.simulation import Simulation

CARD = "README.md"
DESCRIPTION = "config.json"
LIBRARY = "fedvg_jax"

PLACES = ("data_dir", "validation.data_dir", "partition_file", "pretrained", "init")
"""Settings that name files of this machine, which an export does not tell."""


def is_folder(path: Path) -> bool:
    """Returns whether an export to `path` writes a folder: it is one, or it does not exist and has no suffix."""
    return path.is_dir() or (not os.path.lexists(path) and not path.suffix)


def check_target(path: Path) -> None:
    """Raises UsageError if the final model cannot be written to `path`: nothing else may be overwritten."""
    if not path.is_dir():
        files.export_target(path)
    elif any(path.iterdir()) and not _is_own(path):
        raise UsageError(f"export {path}: the folder holds other files; name a new folder, or FILE.safetensors")
    elif not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"export {path}: no permission to write to it; name another folder")


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
    content = description(sim, history)
    with files.writing(path, "--export"):
        path.mkdir(exist_ok=True)
        files.replace(path / DESCRIPTION, json.dumps(content, indent=2) + "\n")
        files.replace(path / CARD, card(content, sim.arrays.name, history))
    pretrained.save(path / pretrained.FILE, history.variables, sim.config.model)


def description(sim: Simulation, history: History) -> dict[str, Any]:
    """Returns the content of config.json: what is needed to build the model, settings and versions of the run."""
    arrays, settings = sim.arrays, _settings(sim.config, sim.given)
    return {
        "library_name": LIBRARY,
        "architecture": sim.config.model,
        "num_classes": len(arrays.class_names),
        "class_names": list(arrays.class_names),
        "input_shape": list(arrays.x.shape[1:]),
        "normalise": sim.config.normalise,
        "settings": settings,
        "versions": history.summary.get("versions", {}),
    }


def _settings(config: Config, given: Collection[str] = ()) -> dict[str, Any]:
    """Returns the settings that the run used and that can affect its results, without paths of this machine.

    Objects that the caller passed stand in place of the settings that they replace, as "own weighting".
    """
    settings = {name: value for name, value in used(config).items() if name not in PLACES}
    prefix, colon, folder = config.dataset.partition(":")
    if Path(folder).is_absolute():
        settings["dataset"] = f"{prefix}{colon}{Path(folder).name}"
    return with_passed(settings, given)


def card(content: dict[str, Any], data: str, history: History) -> str:
    """Returns the model card: Markdown below a header in YAML.

    Args:
        content: of config.json.
        data: name of the data set; any text.
        history: of the run.
    """
    settings, accuracy = content["settings"], history.summary.get("test_accuracy_final")
    result = "" if accuracy is None else f"\nTest accuracy of the final round: {accuracy:.2%}."
    return f"""---
library_name: {LIBRARY}
tags: [federated-learning, jax, flax]
---
The global model ({settings["model"]}) after {len(history.records)} rounds of simulated federated learning on
`{" ".join(data.replace("`", "'").split())}` among {settings["clients"]} clients: algorithm {settings["algorithm"]}, \
weights {settings["weighting"]}.{result}
`config.json` holds classes, shape of the inputs, settings and versions.
Another run starts from it by `python -m fedvg_jax.sim --model {content["architecture"]} --pretrained FOLDER`.
"""


def _is_own(path: Path) -> bool:
    """Returns whether a folder is an earlier export."""
    try:
        return files.read_object(path / DESCRIPTION).get("library_name") == LIBRARY
    except UsageError:
        return False
