"""What a run computes: image-gradients, seconds, and rounds to a target."""

from __future__ import annotations

from fedvg_jax.config import cohort_size
from fedvg_jax.runs.history import Record
from fedvg_jax.views.report.study import Run, Study, evaluations


def rounds_to(study: Study, run: Run, target: float) -> int | None:
    """Returns the first evaluated round that reaches a target; None where none does.

    Args:
        study: where the run is from.
        run: a run folder.
        target: test accuracy in percent, or loss.
    """
    rounds, values = evaluations(study, run)
    reached = (r for r, v in zip(rounds, values, strict=True) if (v >= target if study.more_is_better else v <= target))
    return next(reached, None)


def seconds(run: Run) -> float | None:
    """Returns the seconds of all rounds; None where records are lost."""
    times = [record.get("seconds") for record in run.records]
    return None if None in times else float(sum(t for t in times if t is not None))


def image_gradients(run: Run) -> float | None:
    """Returns the gradients of single images that the run computed: of training and of scoring.

    Training takes one per row and local epoch. A weighting that measures gradients takes one per client of the cohort
    and row of D_val in addition; fltrust one per row, and fitted one per row and step. Server steps and Elastic's probe
    count too. Forward passes, as of val_loss, are not counted.

    Returns:
        The number; None where it cannot be derived: stragglers draw their epochs, D_val's size is not recorded, or the
        algorithm or the weighting came from Python.
    """
    config = run.config
    epochs = config.local_epochs if isinstance(config.local_epochs, int) else None
    if isinstance(config.local_epochs, str) and config.local_epochs.isdigit():
        epochs = int(config.local_epochs)
    if {"algorithm", "weighting"} & {*run.given}:
        return None
    scored = _scored_per_round(run)
    if epochs is None or scored is None:
        return None
    return float(sum(_trained(run, record, epochs) for record in run.records) + scored * len(run.records))


def _trained(run: Run, record: Record, epochs: int) -> float:
    """Returns the gradients of training images in one round."""
    config = run.config
    absent = {*record.get("dropped", ()), *record.get("untrained", ())}
    rows = [n for k, n in zip(record["clients"], record["num_samples"], strict=True) if k not in absent]
    if config.algorithm == "scaffold" and config.scaffold.steps == "single":
        rows = [min(n, config.batch_size) for n in rows]
    probed = sum(config.elastic.ratio * n for n in rows) if config.algorithm == "elastic" else 0
    return epochs * sum(rows) + probed


def _scored_per_round(run: Run) -> float | None:
    """Returns the gradients of validation images in a round; None where the size of D_val is not recorded."""
    config = run.config
    size = run.partition.get("validation", {}).get("samples")
    tuned = config.tuning.steps * config.batch_size
    rule, passes = config.weighting, 0
    if "fltrust" in rule:
        passes += 1
    if "fitted" in rule:
        passes += config.fedvg.fit_steps
    measures = "fedvg" in rule or "generalised" in rule
    if measures and config.fedvg.signal != "delta" and config.fedvg.norm != "delta":
        passes += cohort_size(config)
    if not passes:
        return float(tuned)
    if size is None:
        return None
    return float(tuned + passes * (size - size // 2 if config.select == "held_out" else size))
