"""`python -m fedvg_jax.bounds`, or `fedvg bounds`: accuracies without a federation, to compare a federation's with.

    pooled      one model on the training rows of all clients together (centralised training): a reference
    alone       one model per client on its own rows (local training), tested on the common test set
    validation  one model on the shared validation set D_val: what a weighting that uses D_val must exceed

Data, partition, model and local training are those of `python -m fedvg_jax.sim` with the same options; those of the
federation, such as --weighting, are refused, and a file may hold them, because other commands share it. Each
model trains for rounds x join ratio rounds of local epochs: as many as a client of the federation takes part in.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedvg_jax import commands
from fedvg_jax.__main__ import run_and_exit
from fedvg_jax.config import SETTINGS, Config, Corrupt, Validation, cohort_size, command_line, declare
from fedvg_jax.core.types import UsageError
from fedvg_jax.host import files
from fedvg_jax.runs import stop_signals
from fedvg_jax.views import output

if TYPE_CHECKING:
    import numpy as np

    from fedvg_jax.runs.assemble.simulation import Simulation

PROG = "python -m fedvg_jax.bounds"


class Bound(NamedTuple):
    """One model trained without a federation."""

    kind: str
    """pooled, validation, or alone."""
    client: int | None
    """Id of the client, of kind alone."""
    num_samples: int
    """Training rows."""
    test_accuracy: float
    diverged: int | None = None
    """First round in which the model diverged, where `nonfinite` is "skip"; such rounds leave the model as it was."""


def measure(config: Config, on_bound: Callable[[Bound, int], None] = lambda bound, total: None) -> list[Bound]:
    """Returns the bounds of a run's data and model: pooled, validation, and each client alone.

    Args:
        config: settings of the run; those of the federation (algorithm, weights, attacks, ...) have no effect.
        on_bound: called with every new bound and the number of all bounds.

    Raises:
        UsageError: as `fedvg_jax.run`; or a model diverged, and `nonfinite` is "raise".
    """
    import numpy as np

    from fedvg_jax.runs.assemble import simulation

    one = Config(weighting="uniform")
    federated = simulation.simulation(dataclasses.replace(config, **{name: getattr(one, name) for name in _FEDERATION}))
    table = np.asarray(federated.data.val)
    jobs: list[Job] = [
        ("pooled", None, np.concatenate(federated.partition.train)),
        ("validation", None, table[table >= 0]),
    ]
    jobs += [("alone", client, rows) for client, rows in enumerate(federated.partition.train)]
    bounds = []
    for bound in _train(federated, jobs):
        bounds.append(bound)
        on_bound(bound, len(jobs))
    return bounds


def summary(bounds: Sequence[Bound]) -> dict[str, Any]:
    """Returns test accuracies: pooled, validation, and the mean, minimum and maximum of the clients alone."""
    alone = [b.test_accuracy for b in bounds if b.kind == "alone"]
    single = {b.kind: b.test_accuracy for b in bounds if b.kind != "alone"}
    return single | {"alone_mean": sum(alone) / len(alone), "alone_min": min(alone), "alone_max": max(alone)}


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns an exit code of `python -m fedvg_jax.sim`.

    Args:
        argv: the arguments.
    """
    purpose = "Trains the model without a federation: on pooled rows, on each client alone, and on the validation set."
    examples = f"  {PROG} --alpha 0.05\n  {PROG} --clients 10 --rounds 50"
    if commands.print_help(argv, PROG, purpose, examples, OF_BOUNDS):
        return 0
    return commands.guarded(lambda: _show(_parse(argv)))


_FEDERATION = ("algorithm", "weighting", "selection", "send", "dropout")
_FEDERATION += ("local", "record", "finetune_epochs", "stop_at", "patience", "eval_every", "devices")
_FEDERATION += ("lanes", "hold", "placement", "attack", "robust", *declare.method_groups(Config))
"""Settings, and groups of them, without effect on one model, which has no server and no cohort."""

_ALONE: dict[str, Any] = {
    "clients": 1,
    "join_ratio": 1.0,
    "corrupt": Corrupt(),
    "validation": Validation(),
    **{name: getattr(Config, name) for name in ("test_ratio", "val_ratio", "min_samples", "min_samples_rule")},
    "partition": "iid",
}
"""Settings of one client. Corrupt rows, partition and validation set are those of the federation."""

_OF_A_RUN = ("checkpoint_every", "export", "export_partition", "keep", "profile", "resume", "track")
"""Settings of what a run does beside training."""

OF_BOUNDS = ["fidelity", "config", *(n for n in SETTINGS if n.partition(".")[0] not in (*_FEDERATION, *_OF_A_RUN))]
"""Settings that bounds depend on, or that say where they are written."""

Job = tuple[str, int | None, "np.ndarray"]
"""Kind and client of a bound, and the training rows of its model, [n] int."""


def _train(federated: Simulation, jobs: Sequence[Job]) -> Iterator[Bound]:
    """Yields the bound of each job.

    One program serves all jobs: the rows are data, and every job's table of minibatches has the width of the largest.
    """
    from fedvg_jax.runs import chunks, endings
    from fedvg_jax.runs.assemble import simulation

    config = federated.config
    rounds = max(1, round(config.rounds * cohort_size(config) / config.clients))
    alone = dataclasses.replace(config, **_ALONE, rounds=rounds, eval_every=rounds)
    single = _single(federated, alone)
    largest = max(len(rows) for *_, rows in jobs)
    program = single._replace(model=federated.model)

    def with_rows(rows: np.ndarray) -> Simulation:
        parts = single.partition._replace(train=[rows])
        schedule = simulation.make_schedule(alone, single.arrays, parts, program, largest)
        return single._replace(schedule=schedule)

    programs = chunks.compile_programs(with_rows(jobs[0][-1]))
    for kind, client, rows in jobs:
        trained = chunks.run_chunks(with_rows(rows), programs, single.state, 0, single=False)
        records = [record for _, new in trained for record in new]
        if "test_accuracy" not in records[-1]:
            raise UsageError("bounds compare accuracies, and this task measures none; use a classification task")
        diverged = next((record["round"] for record in records if "diverged" in record), None)
        if config.nonfinite == "raise" and (problem := endings.divergence(records, limit=endings.EXPLOSION)):
            raise UsageError(f"the model of {_name(kind, client)} diverged: {problem}")
        yield Bound(kind, client, len(rows), records[-1]["test_accuracy"], diverged)


def _single(federated: Simulation, alone: Config) -> Simulation:
    """Returns a simulation of one client on the pool and the tables of a federation.

    Args:
        federated: the federation.
        alone: settings of one client.
    """
    import numpy as np

    from fedvg_jax.runs.assemble import simulation

    train, val, test = map(np.concatenate, federated.partition)
    if not len(val):  # a D_val of one client needs rows; the federation's external one replaces it
        train, val = train[:-2], train[-2:]
    single = simulation.simulation(alone, data=federated.arrays, partition=([train], [val], [test]))
    return single._replace(data=federated.data)


def _name(kind: str, client: int | None) -> str:
    return {"pooled": "all rows", "validation": "the validation set"}.get(kind, f"client {client}")


def _parse(words: Sequence[str]) -> Config:
    """Returns the settings of a command line.

    Raises:
        UsageError: as `commands.parse`; or a flag is one that bounds do not have.
    """
    given = command_line.parse(words, PROG)
    commands.refuse_others(given, OF_BOUNDS, "bounds, which train without a federation, in one go")
    config = commands.parse(words)
    if config.resume:
        raise UsageError("bounds cannot be resumed; leave resume out of the file")
    return config


def _show(config: Config) -> int:
    """Measures the bounds, prints them, and writes bounds.json; returns the exit code."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from fedvg_jax.runs.record import folder as run_folder

    def message() -> str:
        reserved.close()  # removes the folder if it is empty
        return "stopped at once; bounds are written at the end only"

    with contextlib.ExitStack() as reserved, stop_signals.say_at_once(message):
        out = commands.new_folder(dataclasses.replace(config, algorithm="bounds", weighting="none"), reserved)
        if not out.exists():
            with files.writing(f"the folder {out}", "--out"):
                out.mkdir(parents=True)
            reserved.callback(run_folder.remove_unused, out)
        commands.start_jax(config)
        console = Console()
        with Progress(console=console) as progress:
            bar = progress.add_task("bounds", total=None)
            bounds = measure(config, lambda bound, total: progress.update(bar, advance=1, total=total))
        results = summary(bounds)
        run_folder.write_json(out / "bounds.json", {"summary": results, "bounds": [b._asdict() for b in bounds]})
    table = Table("bound", "test accuracy")
    for name, value in results.items():
        table.add_row(name.replace("_", ", "), f"{100 * value:.2f}%")
    console.print(table)
    for bound in (bound for bound in bounds if bound.diverged):
        model = _name(bound.kind, bound.client)
        output.say(
            console, f"the model of {model} diverged, first in round {bound.diverged}; such rounds left it as it was"
        )
    output.say(console, f"written to {out / 'bounds.json'}")
    return 0


if __name__ == "__main__":
    run_and_exit(main)
