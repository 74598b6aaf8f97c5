"""The figures of a report by name; each returns its drawings, or one line that says what the runs lack."""

from __future__ import annotations

from collections.abc import Callable

from fedvg_jax.study.cells import Study
from fedvg_jax.study.figures import answers, clients, curves, differences
from fedvg_jax.study.figures.base import Drawing, Style

Figure = Callable[[Study, Style], list[Drawing] | str]
"""Draws a study, or returns one line that says what its runs lack."""

FIGURES: dict[str, Figure] = {
    "differences": differences.differences,
    "curves": curves.learning_curves,
    "bytes": curves.accuracy_against_bytes,
    "alphas": curves.accuracy_against_alpha,
    "weights": clients.client_weights,
    "effective_clients": clients.effective_number,
    "partitions": clients.partitions,
    "classes": answers.recalls,
    "clients": answers.client_accuracies,
}
"""Value of --figures -> the function that draws them."""

CAPTIONS: dict[str, str] = {
    "differences": "Means of paired differences with 95 % intervals; ahead or behind where the t test is significant"
    " after Holm's correction.",
    "curves": "Means over runs, with bands of one standard deviation.",
    "bytes": "Means over runs, with bands of one standard deviation, against what clients received and sent so far.",
    "alphas": "Means over runs, with one standard deviation.",
    "weights": "Weight times cohort size of every client in its rounds; above 1 it counts for more than others.",
    "effective_clients": "K where all clients of a cohort weigh the same, 1 where one client has all weight.",
    "partitions": "The area of a point is the number of training rows of a client and a class.",
    "classes": "Part of the test rows of a class that are given that class; mean over runs with rows of it.",
    "clients": "Clients of all runs in the order of their accuracies, each on its own test rows in the final round.",
}
"""Name of a drawing -> what it shows; the second drawing of a group of settings has "-2" behind its name, and so on."""
