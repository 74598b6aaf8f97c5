"""The figures of a report by name; each returns its drawings, or one line that says what the runs lack."""

from __future__ import annotations

from collections.abc import Callable

from fedvg_jax.views.report.figures import curves
from fedvg_jax.views.report.figures.base import Drawing, Style
from fedvg_jax.views.report.study import Study

FIGURES: dict[str, Callable[[Study, Style], list[Drawing] | str]] = {
    "curves": curves.learning_curves,
}
"""Value of --figures -> the function that draws them."""
