"""`python -m fedvg_jax.bounds`: what the same data gives without a federation, to judge a federation's accuracy by.

    pooled      one model on the training rows of all clients together (centralised training): an upper bound
    alone       one model for every client on its own rows only (local-only training), tested on the common test set:
                what a client has to gain
    validation  one model on the shared validation set D_val alone: what a rule that sees D_val must beat

All flags are those of `python -m fedvg_jax.sim`, and the data, partition, model and local training are the same. Each
bound trains for rounds x join ratio rounds of local epochs: as many as a client of the federation takes part in.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax import sim as command
from fedvg_jax.config import Config
from fedvg_jax.config.population import Corrupt, Validation
from fedvg_jax.config.robustness import Attack
from fedvg_jax.core.types import UsageError

if TYPE_CHECKING:
    import numpy as np

    from fedvg_jax.runs.simulation import Simulation

PROG = "python -m fedvg_jax.bounds"


class Bound(NamedTuple):
    """One model trained without a federation."""

    kind: str
    """pooled, validation, or alone"""
    client: int | None
    """which client, where it is alone"""
    num_samples: int
    test_accuracy: float


def measure(config: Config, told: Callable[[Bound, int], None] = lambda bound, total: None) -> list[Bound]:
    """Every bound of a run's data and model: pooled, validation, and each client alone.

    Args:
        config: the run's settings; those of the federation (algorithm, weights, attacks, ...) play no part.
        told: hears of every bound as it is found, and how many there will be.

    Raises:
        UsageError: as `fedvg_jax.run`.
    """
    from fedvg_jax.runs import simulation

    federated = simulation.simulation(dataclasses.replace(config, **_NEUTRAL))
    jobs = list(_jobs(federated))
    found = []
    for (kind, client, rows), accuracy in zip(jobs, _accuracies(federated, jobs), strict=True):
        found.append(Bound(kind, client, len(rows), accuracy))
        told(found[-1], len(jobs))
    return found


def summary(bounds: Sequence[Bound]) -> dict[str, Any]:
    """Test accuracies: pooled, validation, and over the clients alone the mean, least and largest."""
    alone = [b.test_accuracy for b in bounds if b.kind == "alone"]
    single = {b.kind: b.test_accuracy for b in bounds if b.kind != "alone"}
    return single | {"alone_mean": sum(alone) / len(alone), "alone_min": min(alone), "alone_max": max(alone)}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes as `python -m fedvg_jax.sim`."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(argv):
        print(f"{PROG}\n\n{__doc__}")
    return command.guarded(lambda: _show(command.parse(argv)))


_NEUTRAL = {"algorithm": "fedavg", "weighting": "uniform", "dropout": 0.0, "cohorts": "seeded", "attack": Attack()}
"""A federation of one has nothing to weigh, and nobody who attacks or drops out."""

_ALONE = {"clients": 1, "join_ratio": 1.0, "corrupt": Corrupt(), "validation": Validation()}
"""Corrupt rows and the validation set are those of the federation."""


def _jobs(federated: Simulation) -> Iterator[tuple[str, int | None, np.ndarray]]:
    import numpy as np

    table = np.asarray(federated.data.val)
    yield "pooled", None, np.concatenate(federated.partition.train)
    yield "validation", None, table[table >= 0]
    for client, rows in enumerate(federated.partition.train):
        yield "alone", client, rows


def _accuracies(federated: Simulation, jobs) -> Iterator[float]:
    """Final test accuracies. One program serves all jobs: the rows are data, and every job's table of minibatches has
    the width of the largest."""
    import numpy as np

    from fedvg_jax.runs import chunks, simulation

    config = federated.config
    rounds = max(1, round(config.rounds * config.join_ratio))
    alone = dataclasses.replace(config, **_ALONE, rounds=rounds, eval_every=rounds)
    everyone = tuple([np.concatenate(part)] for part in federated.partition)
    single = simulation.simulation(alone, data=federated.arrays, partition=everyone, task=federated.task)
    single = single._replace(data=federated.data)
    width = simulation.fitting_width(alone.batch_size, max(len(rows) for _, _, rows in jobs))
    executor = simulation.make_executor(alone)

    def with_rows(rows: np.ndarray) -> Simulation:
        parts = single.partition._replace(train=[rows])
        return single._replace(schedule=simulation.make_schedule(alone, single.arrays, parts, executor, width))

    programs = chunks.compile_programs(with_rows(jobs[0][2]))
    for _, _, rows in jobs:
        *_, (_, records) = chunks.run_chunks(with_rows(rows), programs, single.state, 0, single=False)
        if "test_accuracy" not in records[-1]:
            raise UsageError("bounds compare accuracies, and this task measures none; give a task of classification")
        yield records[-1]["test_accuracy"]


def _show(config: Config) -> int:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from fedvg_jax.runs import history

    out = config.out or history.default_folder(dataclasses.replace(config, algorithm="bounds", weighting="none"))
    history.refuse_taken(out)
    command.start_jax(config)
    console = Console()
    with Progress(console=console) as progress:
        bar = progress.add_task("bounds", total=None)
        bounds = measure(config, lambda bound, total: progress.update(bar, advance=1, total=total))
    found = summary(bounds)
    table = Table("bound", "test accuracy")
    for name, value in found.items():
        table.add_row(name.replace("_", ", "), f"{100 * value:.2f}%")
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    history.write_json(out / "bounds.json", {"summary": found, "bounds": [b._asdict() for b in bounds]})
    console.print(f"written to {out / 'bounds.json'}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
