"""Reports a run to MLflow: a server, a database file or a folder, as MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from fedvg_jax.views.tracking import Scalars, TrackedRun, Writer

EXPERIMENT = "fedvg_jax"
"""Name of the experiment unless MLFLOW_EXPERIMENT_NAME is set."""

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""Limits on waiting for a server, unless the user has set others: MLflow's own add up to minutes for one request."""

MOST, LONGEST = 100, 500
"""Limits of one request: parameters or metrics, and characters of a parameter."""


def open_writer(run: TrackedRun) -> Writer:
    """Returns a writer of a new run, or of the one of an earlier part."""
    import mlflow  # pyright: ignore[reportMissingImports]  an extra
    from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    client = mlflow.MlflowClient()
    identity = _known_run(client, run.stored.get("run_id")) or _new_run(client, run)

    def send(kind: str, entries: list[Any]) -> None:
        for i in range(0, len(entries), MOST):
            client.log_batch(identity, **{kind: entries[i : i + MOST]})

    def log(scalars: Scalars) -> None:
        now = int(time.time() * 1000)
        send(
            "metrics",
            [Metric(name, v, now, n) for n, values in scalars.items() for name, v in values.items()],
        )

    def close(status: str, summary: Mapping[str, float], num_rounds: int) -> None:
        log({num_rounds: {f"summary/{name}": value for name, value in summary.items()}})
        client.set_terminated(identity, STATUS[status])

    texts = {name: str(value)[:LONGEST] for name, value in run.settings.items()}
    if identity != run.stored.get("run_id"):
        send("params", [Param(name, text) for name, text in texts.items() if name != "rounds"])
    client.set_tag(identity, "rounds", texts["rounds"])  # a resumed run may have more, and parameters cannot change
    return Writer(f"{mlflow.get_tracking_uri()}, run {identity}", {"run_id": identity}, log, close)


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
