"""What a run shows in the terminal: start lines, progress, and a table of results or of the plan.

The plan compiles the programs of a run, and times its next two rounds and an evaluation:

seconds = rounds x one round + evaluations x one evaluation
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import fedvg_jax
from fedvg_jax.config import method_title
from fedvg_jax.config.checks import method_name, partition_label
from fedvg_jax.config.methods import NATIVE, weighting_names
from fedvg_jax.core import tree
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.host import hardware, processes
from fedvg_jax.runs import chunks, loop
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.runs.record.history import History, Record, primary_metric
from fedvg_jax.views import output

FEW_ROWS = 15
"""Rows of D_val with which half of the variance of FedVG's weights is signal, see docs/results.md."""

RESULTS = {
    "test accuracy, final round": "test_accuracy_final",
    "test accuracy, round best on validation": "test_accuracy_at_best_val",
    "test accuracy, maximum (chosen on test)": "test_accuracy_max",
    "always answering the largest class": "majority_accuracy",
    "accuracy of clients, personal models where they have them": "personal_accuracy_mean",
    "test loss, final round": "test_loss_final",
    "test loss, round best on validation": "test_loss_at_best_val",
    "test loss, minimum (chosen on test)": "test_loss_min",
}
"""Row of the table of results -> key of summary.json."""


Make = Callable[[], simulation.Simulation]
"""() -> the simulation of a run"""


def prepare(console: Console, make: Make, unused: str) -> simulation.Simulation:
    """Returns the simulation of a run; shows what is done for it, and the start of the run.

    Args:
        console: where to print.
        make: makes the simulation.
        unused: as in `start_text`.
    """
    with console.status("reading data"):
        sim = make()
    output.say(console, start_text(sim, unused))
    return sim


def run(
    console: Console,
    make: Make,
    unused: str = "",
    on_chunk_done: Callable[[], None] = lambda: None,
    **observers: Any,
) -> History:
    """Runs as the command line does, on standard output or in the cell of a notebook.

    Shows rounds as they finish: in a terminal in a line that changes, elsewhere in a line per evaluation.

    Args:
        console: where to print.
        make: makes the simulation.
        unused: as in `start_text`.
        on_chunk_done: called after every chunk of rounds, before its records are shown.
        **observers: of `loop.run_simulation`.
    """
    with processes.together():
        sim = prepare(console, make, unused)
    metric, rounds = "", sim.experiment.rounds
    with console.status("compiling") as status:

        def on_progress(records: list[Record]) -> None:
            nonlocal metric
            on_chunk_done()
            record = records[-1]
            is_evaluated = "test_loss" in record
            metric = metric_text(record) if is_evaluated else metric
            virtual = record.get("virtual_seconds")
            ended = "" if virtual is None else f", virtual time {output.duration(virtual)}"
            left = (record["seconds"] or 0) * (rounds - record["round"])
            count = f"{record['round']}/{rounds}"
            line = f"round {count}  {metric}{ended}, about {left:.0f} s left"
            status.update(line)
            if is_evaluated and not console.is_terminal:
                console.print(line, highlight=False)

        log = functools.partial(output.say, console)
        finished = output.run_simulation(sim, **observers, on_progress=on_progress, log=log)
    if processes.is_first():
        print_results(console, finished)
    loop.export(sim, finished)
    return finished


def start_text(sim: simulation.Simulation, unused: str = "") -> str:
    """Returns lines on device, data, clients, model and method.

    Args:
        sim: the simulation that is about to start.
        unused: settings that the run does not use and their TOML file, for a separate line.
    """
    config, cohorts, machine = sim.config, sim.experiment.cohorts, hardware.current()
    num_train, _, num_test = (client_rows.sizes(rows).sum() for rows in sim.partition)
    statistics, custom = sim.experiment.statistics, sim.experiment.custom
    num_val, partition = statistics["validation"]["samples"], statistics["partition"]
    if partition == config.partition:  # it may come from Python
        partition = partition_label(config)
    training = f"; {cohorts.concurrency} in training" if cohorts.concurrency else ""
    sharding = sim.executor.clients
    num_used = sharding.mesh.size if sharding else 1
    devices = f"{num_used} of {machine.num_devices} x {machine.kind}"
    parts = f"{num_train:,} to train, {num_val:,} to validate, {num_test:,} to test"
    local = f"{config.local_epochs} local epochs of batches of {cohorts.batch_size}"
    weightings = () if "weighting" in custom else weighting_names(config.weighting)
    method, vg = method_title(method_name(config, custom)), config.fedvg
    if NATIVE in weightings and "algorithm" not in custom:
        method += f", weights {sim.algorithm.native_weighting}"
    if "fedvg" in weightings:
        method += f" ({vg.norm} norm, {vg.granularity}, scored in {vg.mode} mode)"
    lines = [
        f"fedvg_jax {fedvg_jax.__version__} on {machine.platform} ({devices}), jax {jax.__version__}",
        f"data    {sim.arrays.name}: {data_text(sim.arrays)}; {parts}",
        f"clients {cohorts.num_clients}, partition {partition}{training}; {cohorts.size} a round, {local} at lr"
        f" {config.lr:g}",
        f"model   {_model_text(sim)}",
        f"method  {method}",
    ]
    if unused:
        lines.append(f"unused  {unused}")
    if "fedvg" in weightings and num_val < FEW_ROWS:
        lines.append(
            f"D_val   {num_val} rows: below {FEW_ROWS}, most of the variance of FedVG's weights is noise"
        )
    return "\n".join(lines)


def _model_text(sim: simulation.Simulation) -> str:
    """Returns the name of the model, its size, and the file that it starts from."""
    trained, init = sim.state.variables, sim.config.init
    num_trained, total = (tree.size(model.params) for model in (trained, sim.whole(trained)))
    text = f"{sim.experiment.model.name or 'custom'}, {total:,} parameters"
    if num_trained < total:
        text += f", of which {100 * num_trained / total:.2g} % are trained"
    return f"{text}, from {init}" if init else text


def data_text(arrays: Arrays) -> str:
    """Returns the number and shape of the rows, and their classes or targets."""
    num_classes = len(arrays.class_names)
    count, *shape = arrays.x.shape
    rows = f"{count:,} {output.unit(arrays)} {shape}"
    if not num_classes:
        return f"{rows}, targets {list(arrays.y.shape[1:])}"
    return f"{rows}, {len(np.unique(arrays.y))} of {num_classes} classes"


def print_results(console: Console, history: History) -> None:
    """Prints the table of results, and the run folder on a separate line, which no narrow terminal cuts."""
    summary, rows = history.summary, {}
    for label, name in RESULTS.items():
        value = summary.get(name)
        if value is not None:
            rows[label] = f"{value:.4g}" if "loss" in name else f"{value:.2%}"
    rows["rounds"] = f"{summary['rounds']} in {summary['run_seconds']:.1f} s"
    if history.records and "virtual_seconds" in history.records[-1]:
        rows["virtual time"] = output.duration(history.records[-1]["virtual_seconds"])
    if summary.get("stopped_early"):
        rows["stopped early"] = summary["stopped_early"]
    if summary.get("epsilon") is not None:
        rows["epsilon"] = f"{summary['epsilon']:.4g} at delta {summary['delta']:g}"
    down, up = (f"{summary[name] / 2**20:,.1f} MiB" for name in ("bytes_down", "bytes_up"))
    rows["sent to clients, and back"] = f"{down}, {up}"
    rows["compiling"] = f"{summary['compile_seconds']:.1f} s"
    print_table(console, rows, "interrupted" if summary["interrupted"] else None)
    if history.folder is not None:
        output.say(console, f"run folder {history.folder}")


def print_table(console: Console, rows: output.Rows, title: str | None) -> None:
    """Prints a table of names and texts."""
    table = Table(show_header=False, title=title)
    for row in rows.items():
        table.add_row(*row)
    console.print(table)


def metric_text(record: Record) -> str:
    """Returns the test accuracy of an evaluation, or the test loss of a task without accuracy."""
    name = primary_metric(record)
    value = record[f"test_{name}"]
    if value is None:
        return f"test {name} not finite"
    return f"test {name} {value:.1%}" if name == "accuracy" else f"test {name} {value:.3f}"


def plan_rows(sim: simulation.Simulation) -> output.Rows:
    """Returns the rows of the table of a plan.

    Args:
        sim: as `simulation.simulation` returns it; its state is not changed.
    """
    experiment, compiled = sim.experiment, chunks.compile_programs(sim)
    rounds, last = experiment.rounds, min(experiment.rounds, 2)
    two = sim._replace(experiment=experiment._replace(rounds=last, eval_every=last))
    begin = end = time.perf_counter()
    one_round = 0.0
    for _, of_chunk in chunks.run_chunks(two, compiled, sim.state, is_single=True):
        # of the last chunk: the first round after compiling takes longer
        begin, end, one_round = end, time.perf_counter(), of_chunk[-1]["seconds"]
    evaluations = math.ceil(rounds / experiment.eval_every)
    seconds = rounds * one_round + evaluations * (end - begin - one_round)
    hours = f" ({seconds / 3600:.1f} h)" if seconds > 3600 else ""
    # arguments, results and temporaries of a chunk, as XLA plans them
    memory = programs.program_bytes(compiled.chunk)
    return {
        "compiling": f"{compiled.seconds:.1f} s",
        "one round": f"{one_round:.3g} s",
        f"{rounds:,} rounds": f"{seconds:,.0f} s{hours}",
        "memory": f"{memory / 2**30:.2f} GiB",
    }
