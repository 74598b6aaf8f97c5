"""Reports a run to MLflow: a server, a database file or a folder, as MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from fedvg_jax.views.tracking.writers import Ending, Scalars, TrackedRun, Writer

T = TypeVar("T")

EXPERIMENT = "fedvg_jax"
"""Name of the experiment unless MLFLOW_EXPERIMENT_NAME is set."""

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Limits on waiting for a server, unless the user has set others: MLflow's own add up to minutes for one request."""

MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 500
"""Limits of one request: metrics, parameters, and characters of a parameter."""


def open_writer(run: TrackedRun) -> Writer:
    """Returns a writer of a new run, or of the one of an earlier part."""
    import mlflow  # pyright: ignore[reportMissingImports]  an extra
    from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    with _without_retries_in_the_log():
        client = mlflow.MlflowClient()
        known = _known_run(client, run.stored.get("run_id"))
        identity = known or _new_run(client, run)
        params = [] if known else [Param(name, str(value)[:LONGEST]) for name, value in run.settings.items()]
        for some in _batches(params, MOST_PARAMS):
            client.log_batch(identity, params=some)

    def log(scalars: Scalars) -> None:
        now = int(time.time() * 1000)
        metrics = (Metric(name, v, now, number) for number, values in scalars.items() for name, v in values.items())
        with _without_retries_in_the_log():
            for some in _batches(metrics, MOST_METRICS):
                client.log_batch(identity, metrics=some)

    def close(ending: Ending) -> None:
        log({ending.num_rounds: {f"summary/{name}": value for name, value in ending.summary.items()}})
        with _without_retries_in_the_log():
            for path in ending.pictures.values():
                client.log_artifact(identity, str(path), "pictures")
            client.set_terminated(identity, STATUS[ending.status])

    return Writer(f"{mlflow.get_tracking_uri()}, run {identity}", {"run_id": identity}, log, close)


@contextlib.contextmanager
def _without_retries_in_the_log() -> Iterator[None]:
    """Hides the lines of single retries: the error behind the last one is reported."""
    logger = logging.getLogger("urllib3.connectionpool")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _known_run(client: Any, identity: Any) -> str | None:
    """Returns the id of the run of an earlier part, which is going on again; None where it does not exist."""
    from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

    if not isinstance(identity, str):
        return None
    try:
        client.update_run(identity, status="RUNNING")
    except MlflowException:  # removed, or in another store
        return None
    return identity


def _new_run(client: Any, run: TrackedRun) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    tags = {"sweep": run.group} if run.group else {}
    return client.create_run(number, run_name=run.name, tags=tags).info.run_id


def _batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields the values in lists of at most `size`.

    >>> list(_batches(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """
    remaining = iter(values)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
