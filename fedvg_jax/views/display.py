"""What a run shows in the terminal: start lines, progress, and a table of results or of the plan.

The plan compiles the programs of a run, and times its next two rounds and an evaluation:

seconds = rounds x one round + evaluations x one evaluation
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

import fedvg_jax
from fedvg_jax.config import Config, cohort_size, method_title
from fedvg_jax.config.methods import NATIVE, weighting_names
from fedvg_jax.config.options import algorithm_of, concurrency
from fedvg_jax.core import tree
from fedvg_jax.data.arrays import Arrays, classes_without_rows
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.host import hardware, processes
from fedvg_jax.resolve import experiment as experiments
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.resolve.machine import num_devices
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


def prepare(console: Console, config: Config, custom: Custom, unused: str) -> simulation.Simulation:
    """Returns the simulation of a run; shows what is done for it, and the start of the run.

    Args:
        console: where to print.
        config: checked settings of the run.
        custom: what a call from Python passes in place of settings.
        unused: as in `start_text`.
    """
    with console.status("reading data"):
        sim = experiments.simulate(config, custom)
    output.say(console, start_text(sim, unused))
    return sim


def run(
    console: Console,
    config: Config,
    custom: Custom,
    unused: str = "",
    fields: Mapping[str, Any] = {},
    on_chunk_done: Callable[[], None] = lambda: None,
    **observers: Any,
) -> History:
    """Runs as the command line does, on standard output or in the cell of a notebook.

    Args:
        console: where to print.
        config: checked settings.
        custom: objects that take the place of settings.
        unused: as in `start_text`.
        fields: of the simulation, which are set.
        on_chunk_done: called after every chunk of rounds, before its records are shown.
        **observers: of `loop.run_simulation`.
    """
    with processes.together():
        sim = prepare(console, config, custom, unused)._replace(**fields)
    with round_progress(console, config.rounds) as show:

        def on_progress(records: list[Record]) -> None:
            on_chunk_done()
            show(records)

        finished = output.run_simulation(
            sim,
            **observers,
            on_progress=on_progress,
            log=functools.partial(output.say, console),
        )
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
    config, machine = sim.config, hardware.current()
    sizes = [int(client_rows.sizes(rows).sum()) for rows in sim.partition]
    statistics = sim.experiment.statistics
    num_val, partition = statistics["validation"]["samples"], statistics["partition"]
    if partition == config.partition:  # it may come from Python
        partition = output.partition_label(config)
    training = f"; {concurrency(config)} in training" if config.buffered.size else ""
    devices = f"{num_devices(config)} of {machine.num_devices} x {machine.kind}"
    parts = f"{sizes[0]:,} to train, {num_val:,} to validate, {sizes[2]:,} to test"
    local = f"{config.local_epochs} local epochs of batches of {config.batch_size}"
    lines = [
        f"fedvg_jax {fedvg_jax.__version__} on {machine.platform} ({devices}), jax {jax.__version__}",
        f"data    {sim.arrays.name}: {data_text(sim.arrays)}; {parts}",
        f"clients {config.clients}, partition {partition}{training}; {cohort_size(config)} a round, {local} at lr"
        f" {config.lr:g}",
        f"model   {_model_text(sim)}",
        f"method  {method_text(config, sim.experiment.custom)}",
    ]
    if unused:
        lines.append(f"unused  {unused}")
    weightings = () if "weighting" in sim.experiment.custom else weighting_names(config.weighting)
    if "fedvg" in weightings and num_val < FEW_ROWS:
        lines.append(
            f"D_val   {num_val} rows: below {FEW_ROWS}, most of the variance of FedVG's weights is noise"
        )
    return "\n".join(lines)


def _model_text(sim: simulation.Simulation) -> str:
    """Returns the name of the model, its size, and the file that it starts from."""
    trained, config = sim.state.variables, sim.config
    num_trained, total = (tree.size(model.params) for model in (trained, sim.whole(trained)))
    text = f"{sim.experiment.model.name or 'given'}, {total:,} parameters"
    if num_trained < total:
        text += f", of which {100 * num_trained / total:.2g} % are trained"
    return f"{text}, from {config.init}" if config.init else text


def data_text(arrays: Arrays) -> str:
    """Returns the number and shape of the rows, and their classes or targets."""
    num_classes, absent = len(arrays.class_names), classes_without_rows(arrays)
    count, *shape = arrays.x.shape
    rows = f"{count:,} {output.unit(arrays)} {shape}"
    if not num_classes:
        return f"{rows}, targets {list(arrays.y.shape[1:])}"
    return f"{rows}, {num_classes - len(absent)} of {num_classes} classes"


def method_text(config: Config, given: Mapping[str, str]) -> str:
    """Returns the method as papers name it, with the options of FedVG where it is used.

    Args:
        config: of the run.
        given: what the caller passed in place of the config's -> its name; "" for one without.
    """
    title, vg = method_title(output.method_name(config, given)), config.fedvg
    names = () if "weighting" in given else weighting_names(config.weighting)
    if NATIVE in names and "algorithm" not in given:
        title += f", weights {algorithm_of(config).native_weighting}"
    if "fedvg" in names:
        title += f" ({vg.norm} norm, {vg.granularity}, scored in {vg.mode} mode)"
    return title


@contextlib.contextmanager
def round_progress(console: Console, total: int) -> Iterator[Callable[[list[Record]], None]]:
    """Shows rounds as they finish; yields a function that takes the new records.

    In a terminal: a line that changes. Elsewhere: a line per evaluation.

    Args:
        console: where to print.
        total: number of rounds.
    """
    metric = ""
    with console.status("compiling") as status:

        def show(records: list[Record]) -> None:
            nonlocal metric
            record = records[-1]
            is_evaluated = "test_loss" in record
            metric = metric_text(record) if is_evaluated else metric
            virtual = record.get("virtual_seconds")
            ended = "" if virtual is None else f", virtual time {output.duration(virtual)}"
            left = (record["seconds"] or 0) * (total - record["round"])
            line = f"round {record['round']}/{total}  {metric}{ended}, about {left:.0f} s left"
            status.update(line)
            if is_evaluated and not console.is_terminal:
                console.print(line, highlight=False)

        yield show


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
    if "bytes_down" in summary:
        down, up = (f"{summary[name] / 2**20:,.1f} MiB" for name in ("bytes_down", "bytes_up"))
        rows["sent to clients, and back"] = f"{down}, {up}"
    rows["compiling"] = f"{summary['compile_seconds']:.1f} s"
    print_table(console, rows, "interrupted" if summary["interrupted"] else None)
    if history.folder is not None:
        output.say(console, f"run folder {history.folder}")


def print_table(console: Console, rows: Mapping[str, str], title: str | None) -> None:
    """Prints a table of names and texts."""
    table = Table(show_header=False, title=title)
    for row in rows.items():
        table.add_row(*row)
    console.print(table)


def plan_rows(plan: Prediction) -> dict[str, str]:
    """Returns the rows of the table of a plan."""
    hours = f" ({plan.seconds / 3600:.1f} h)" if plan.seconds > 3600 else ""
    return {
        "compiling": f"{plan.compile_seconds:.1f} s",
        "one round": f"{plan.seconds_per_round:.3g} s",
        f"{plan.rounds:,} rounds": f"{plan.seconds:,.0f} s{hours}",
        "memory": f"{plan.memory_bytes / 2**30:.2f} GiB",
    }


def metric_text(record: Record) -> str:
    """Returns the test accuracy of an evaluation, or the test loss of a task without accuracy."""
    name = primary_metric(record)
    value = record[f"test_{name}"]
    if value is None:
        return f"test {name} not finite"
    return f"test {name} {value:.1%}" if name == "accuracy" else f"test {name} {value:.3f}"


class Prediction(NamedTuple):
    """The plan of a run."""

    rounds: int
    compile_seconds: float
    seconds_per_round: float
    """Without an evaluation."""
    seconds: float
    """All these rounds, without compiling."""
    memory_bytes: int
    """arguments, results and temporaries of a chunk, as XLA plans them"""


def predict(sim: simulation.Simulation) -> Prediction:
    """Returns the plan of a run.

    Args:
        sim: as `simulation.simulation` returns it; its state is not changed.
    """
    config, compiled = sim.config, chunks.compile_programs(sim)
    last = min(config.rounds, 2)
    settings = dataclasses.replace(config, rounds=last, eval_every=last)
    two = sim._replace(experiment=sim.experiment._replace(settings=settings))
    begin = end = time.perf_counter()
    one_round = 0.0
    for _, of_chunk in chunks.run_chunks(two, compiled, sim.state, is_single=True):
        # of the last chunk: the first round after compiling takes longer
        begin, end, one_round = end, time.perf_counter(), of_chunk[-1]["seconds"]
    evaluations = math.ceil(config.rounds / config.eval_every)
    return Prediction(
        rounds=config.rounds,
        compile_seconds=compiled.seconds,
        seconds_per_round=one_round,
        seconds=config.rounds * one_round + evaluations * (end - begin - one_round),
        memory_bytes=programs.program_bytes(compiled.chunk),
    )
