"""Reports a run to Weights & Biases, or to its offline files where WANDB_MODE is offline."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from fedvg_jax.views.tracking import Scalars, TrackedRun, Writer

PROJECT = "fedvg_jax"
"""Name of the project unless WANDB_PROJECT is set."""

EXIT_CODES = {"finished": 0, "stopped": 130, "failed": 1}
"""Status of a run -> exit code reported to W&B, which shows codes other than 0 as crashed."""


def open_writer(run: TrackedRun) -> Writer:
    """Returns a writer of a run with a stable id; a resumed run goes on in it."""
    import wandb  # pyright: ignore[reportMissingImports]  an extra

    known = run.stored.get("id")
    identity = known if isinstance(known, str) and known else uuid.uuid4().hex[:8]
    arguments: dict[str, Any] = {"group": run.group} if run.group else {}
    if run.folder is not None and "WANDB_DIR" not in os.environ:
        arguments["dir"] = str(run.folder)
    tracked = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        id=identity,
        resume="allow" if known else None,
        config=dict(run.settings),
        reinit="create_new",  # the runs of a sweep follow one another, beside a run of the caller's own
        settings=wandb.Settings(console="off", silent=True),
        **arguments,
    )
    tracked.define_metric("round")
    tracked.define_metric("*", step_metric="round")

    def log(scalars: Scalars) -> None:
        for number, values in scalars.items():
            tracked.log({"round": number, **values})

    def close(status: str, summary: Mapping[str, float], num_rounds: int) -> None:
        tracked.summary.update(dict(summary))
        tracked.finish(exit_code=EXIT_CODES[status])

    place = f"{tracked.dir} (offline; wandb sync sends it)" if tracked.offline else str(tracked.url)
    return Writer(place, {"id": identity}, log, close)
