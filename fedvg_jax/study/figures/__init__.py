"""The figures of a report by name; each returns its drawings, none where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedvg_jax.config.options import partition_seed
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import History
from fedvg_jax.study.cells import Cell, Run, Study
from fedvg_jax.study.figures import base, clients, curves
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.views.output import method_and_run

Figure = Callable[[Study], list[Drawing]]

FIGURES: dict[str, Figure] = {
    "differences": curves.differences,
    "curves": curves.learning_curves,
    "alphas": curves.accuracy_against_alpha,
    "weights": clients.client_weights,
    "partitions": clients.partitions,
}
"""Value of --figures -> the function that draws them."""


def draw_run(folder: Path, history: History) -> list[Path]:
    """Writes the pictures of one run, a study of one: `curves.png` and `weights.png`; returns their paths.

    Args:
        folder: of the run.
        history: its records, at least one, with its settings.

    Raises:
        UsageError: the folder cannot be written.
    """
    config = history.config
    assert config is not None, "a run has settings"
    method, title = method_and_run(config, files.read_object_if_any(folder / "manifest.json").get("given", {}))
    cell = Cell(method, (), {(config.seed, partition_seed(config)): Run(folder, history, {}, {}, ())})
    metric = "accuracy" if any("test_accuracy" in record for record in history.records) else "loss"
    study = Study(title, (method,), ((),), {(method, ()): cell}, metric, {})
    paths = []
    with base.drawing(), files.writing(folder, "--out"):
        for draw in (curves.learning_curves, clients.client_weights):
            for each in draw(study):
                paths += base.save(each._replace(title=study.title), folder, ("png",))
    return paths
