"""The figures of a report by name; each returns its drawings, none where the runs lack what it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedvg_jax.config.options import partition_seed
from fedvg_jax.host import files
from fedvg_jax.runs.record.history import BETTER, History
from fedvg_jax.study.collect import make_frame
from fedvg_jax.study.figures import base, clients, curves
from fedvg_jax.study.figures.base import Drawing
from fedvg_jax.study.groups import Study
from fedvg_jax.study.outcomes import Outcome
from fedvg_jax.study.places import Place
from fedvg_jax.study.reading import Folder
from fedvg_jax.study.run import Run
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
    method, title = method_and_run(
        config, files.read_object_if_any(folder / "manifest.json").get("custom", {})
    )
    metric = "accuracy" if any("test_accuracy" in record for record in history.records) else "loss"
    run = Folder(folder.name, {}, Run(folder, history))
    place = Place(method, (), (config.seed, partition_seed(config)))
    outcome = Outcome(metric, BETTER[metric])
    study = Study(title, (method,), ((),), make_frame([run], [place], [()]), outcome, {})
    with base.drawing([title]), files.writing(folder, "--out"):
        drawn = [*curves.learning_curves(study), *clients.client_weights(study)]
        return [
            path
            for each in drawn
            for path in base.save(each._replace(title=title), folder, ("png",))
        ]
