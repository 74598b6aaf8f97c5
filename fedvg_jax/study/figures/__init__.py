"""The figures of a report; each function returns its drawings, none where the runs lack what it shows."""

from __future__ import annotations

from pathlib import Path

from fedvg_jax.config.checks import method_and_run
from fedvg_jax.config.options import partition_seed
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import BETTER, History
from fedvg_jax.study.collect import make_frame
from fedvg_jax.study.figures import base, clients, curves
from fedvg_jax.study.groups import Study
from fedvg_jax.study.outcomes import Outcome
from fedvg_jax.study.places import Place
from fedvg_jax.study.reading import Folder
from fedvg_jax.study.run import Run

FIGURES = (
    curves.differences,
    curves.learning_curves,
    clients.client_weights,
    clients.partitions,
)


def draw_run(history: History) -> list[Path]:
    """Writes the pictures of one run, a study of one: `curves.png` and `weights.png`; returns their paths.

    Args:
        history: records, at least one, with the run folder and the settings.

    Raises:
        UsageError: the folder cannot be written.
    """
    config, folder = history.config, history.folder
    assert config and folder, "a run in a folder has settings"
    manifest = files.read_object_if_any(folder / "manifest.json")
    method, title = method_and_run(config, manifest.get("custom", {}))
    metric = "accuracy" if any("test_accuracy" in record for record in history.records) else "loss"
    run = Folder(folder.name, {}, Run(folder, history))
    place = Place(method, (), (config.seed, partition_seed(config)))
    frame, outcome = make_frame([run], [place], [()]), Outcome(metric, BETTER[metric])
    study = Study(title, (method,), ((),), frame, outcome, {})
    with base.drawing(), files.writing(folder, "--out"):
        paths = []
        for drawing in (*curves.learning_curves(study), *clients.client_weights(study)):
            paths += base.save(drawing._replace(title=title), folder, ("png",))
        return paths
