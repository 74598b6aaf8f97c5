"""What a run shows in the terminal: start lines, progress, and a table of results or of the plan.

The plan compiles the programs of a run, and times its next two rounds and an evaluation:

seconds = rounds x one round + evaluations x one evaluation
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import fedvg_jax
from fedvg_jax.config import Config, cohort_size, method_title
from fedvg_jax.config.methods import algorithm_of
from fedvg_jax.config.options import concurrency
from fedvg_jax.config.uses import with_passed
from fedvg_jax.config.weighting_grammar import method_of
from fedvg_jax.core import tree
from fedvg_jax.data import user_data
from fedvg_jax.data.arrays import Arrays, classes_without_rows
from fedvg_jax.data.partitions import client_rows
from fedvg_jax.host import hardware
from fedvg_jax.resolve import experiment as experiments
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.resolve.machine import num_devices as devices_of
from fedvg_jax.runs import chunks
from fedvg_jax.runs.assemble import programs, simulation
from fedvg_jax.runs.record import stored
from fedvg_jax.runs.record.history import History, Record, primary_metric
from fedvg_jax.views.output import duration, partition_label, say

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


def prepare(
    console: Console, config: Config, custom: Custom, unused: str = ""
) -> simulation.Simulation:
    """Returns the simulation of a run; shows what is done for it, and the start of the run.

    Args:
        console: where to print.
        config: checked settings of the run.
        custom: what a call from Python passes in place of settings.
        unused: as in `start_text`.
    """
    with console.status("reading data"):
        sim = experiments.simulate(config, custom)
    say(console, start_text(sim, unused))
    return sim


def start_text(sim: simulation.Simulation, unused: str = "") -> str:
    """Returns lines on device, data, clients, model and method.

    Args:
        sim: the simulation that is about to start.
        unused: settings that the run does not use and their TOML file, for a line of their own.
    """
    config, machine = sim.config, hardware.current()
    devices = (
        f"{os.cpu_count()} cores" if machine.is_cpu else f"{machine.num_devices} x {machine.kind}"
    )
    num_devices = devices_of(config)
    shared = f", cohorts shared by {num_devices}" if num_devices > 1 else ""
    sizes = {
        part: int(client_rows.sizes(rows).sum()) for part, rows in sim.partition._asdict().items()
    }
    sizes["val"] = sim.statistics["validation"]["samples"]
    partition = sim.statistics["partition"]  # that which was made; it may come from Python
    partition = partition_label(config) if partition == config.partition else partition
    lines = [
        f"fedvg_jax {fedvg_jax.__version__} on {machine.platform} ({devices}{shared}), jax {jax.__version__}",
        f"data    {sim.arrays.name}: {data_text(sim.arrays)};"
        f" {sizes['train']:,} to train, {sizes['val']:,} to validate, {sizes['test']:,} to test"
        + (", kept on the host" if sim.host_rows else ""),
        f"clients {config.clients}, partition {partition}"
        + (", their states kept on the host" if sim.state_placement.is_on_host else "")
        + (f"; {concurrency(config)} in training" if config.buffered.size else "")
        + f"; {cohort_size(config)} a round,"
        f" {config.local_epochs} local epochs of batches of {config.batch_size} at lr {config.lr:g}",
        f"model   {_model_text(sim)}",
        f"method  {method_text(config, sim.experiment.custom)}"
        + (f", updates sent by {config.send}" if config.send != "none" else "")
        + (
            f", epsilon {sim.account.epsilon(config.rounds):.3g} at delta {config.dp.delta:g}"
            if sim.account
            else ""
        ),
        *([f"unused  {unused}"] if unused else []),
    ]
    if (
        sizes["val"] < FEW_ROWS
        and "fedvg" in config.weighting
        and "weighting" not in sim.experiment.custom
    ):
        lines.append(
            f"D_val   {sizes['val']} rows: below {FEW_ROWS}, most of the variance of FedVG's weights is noise"
        )
    return "\n".join(lines)


def _model_text(sim: simulation.Simulation) -> str:
    """Returns the name of the model, its size, and the file that it starts from."""
    trained, total = (
        tree.size(model.params) for model in (sim.state.variables, sim.whole(sim.state.variables))
    )
    size = f"{total:,} parameters"
    if trained < total:
        size += f", of which {100 * trained / total:.2g} % are trained"
    if "task" in sim.experiment.custom:
        return f"given, {size}"
    text, init = f"{sim.config.model}, {size}", sim.config.init
    if init:
        text += f", from {init}" if stored.is_run(init) else f", from {init} except the head"
    return text


def data_text(arrays: Arrays) -> str:
    """Returns the number and shape of the rows, and their classes or targets."""
    x, num_classes, absent = arrays.x, len(arrays.class_names), classes_without_rows(arrays)
    named = f"{num_classes - len(absent)} of {num_classes}" if absent else f"{num_classes}"
    if user_data.is_sequences(arrays):
        return f"{len(x):,} sequences of {x.shape[1]}, {named} characters"
    is_images = user_data.is_images(arrays)
    rows = (
        f"images {' x '.join(map(str, x.shape[1:]))}"
        if is_images
        else f"rows of {x.dtype} {list(x.shape[1:])}"
    )
    targets = (
        f"{named} classes"
        if num_classes
        else f"targets {arrays.y.dtype} {list(arrays.y.shape[1:])}"
    )
    return f"{len(x):,} {rows}, {targets}"


def method_text(config: Config, given: Mapping[str, str] = {}) -> str:
    """Returns the method as papers name it, with the options of FedVG where it is used.

    Args:
        config: of the run.
        given: what the caller passed in place of the config's -> its name; "" for one without.
    """
    named = with_passed({n: getattr(config, n) for n in ("algorithm", "weighting")}, given)
    algorithm, weighting = named["algorithm"], named["weighting"]
    title, vg = method_title(method_of(algorithm, weighting, config.local)), config.fedvg
    if "native" in weighting and not {"algorithm", "weighting"} & given.keys():
        title += f", weights {algorithm_of(config).native_weighting}"
    if "fedvg" in weighting and "weighting" not in given:
        title += f" ({vg.norm} norm, {vg.granularity}, scored in {vg.mode} mode)"
    return title


@contextlib.contextmanager
def round_progress(console: Console, total: int) -> Iterator[Callable[[list[Record]], None]]:
    """Shows rounds as they finish; yields a function that takes the new records.

    In a terminal: a bar with test accuracy, or loss, and the time left. Elsewhere: a line per evaluation.

    Args:
        console: where to print.
        total: number of rounds.
    """
    if not console.is_terminal:
        yield lambda records: _print_evaluation(console, records[-1], total)
        return
    metric = TextColumn("{task.fields[metric]}{task.fields[virtual]}")
    columns = (TextColumn("round {task.completed}/{task.total}"), BarColumn(), TaskProgressColumn())
    left = (TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
    times = (*left, TextColumn("elapsed"), TimeElapsedColumn())
    with Progress(*columns, metric, *times, console=console) as progress:
        bar = progress.add_task("rounds", total=total, metric="test  ...  ", virtual="")

        def show(records: list[Record]) -> None:
            virtual = virtual_text(records[-1])
            progress.update(bar, completed=records[-1]["round"], virtual=virtual)
            if records[-1].get("test_loss") is not None:
                progress.update(bar, metric=metric_text(records[-1]))

        yield show


def print_results(console: Console, history: History) -> None:
    """Prints the table of results, and the run folder on a line of its own, which no narrow terminal cuts."""
    console.print(result_table(history))
    if history.folder is not None:
        say(console, f"run folder {history.folder}")


def result_table(history: History) -> Table:
    """Returns the results of a run as a table."""
    summary = history.summary
    table = Table(show_header=False, title="interrupted" if summary["interrupted"] else None)
    table.caption = "validation: D_val, which FedVG's weights also use"
    for label, name in RESULTS.items():
        if summary.get(name) is not None:
            table.add_row(
                label, f"{summary[name]:.4g}" if "loss" in name else f"{summary[name]:.2%}"
            )
    table.add_row("rounds", f"{summary['rounds']} in {summary['run_seconds']:.1f} s")
    if history.records and "virtual_seconds" in history.records[-1]:
        table.add_row("virtual time", duration(history.records[-1]["virtual_seconds"]))
    if summary.get("stopped_early"):
        table.add_row("stopped early", summary["stopped_early"])
    if summary.get("epsilon") is not None:
        shared = "runs of one seed share their noise"
        table.add_row(
            "epsilon", f"{summary['epsilon']:.4g} at delta {summary['delta']:g}; {shared}"
        )
    if "bytes_down" in summary:
        down, up = (f"{summary[name] / 2**20:,.1f} MiB" for name in ("bytes_down", "bytes_up"))
        table.add_row("sent to clients, and back", f"{down}, {up}")
    table.add_row("compiling", f"{summary['compile_seconds']:.1f} s")
    if summary["resumed_from"] is not None:
        table.add_row("resumed from round", str(summary["resumed_from"]))
    return table


def plan_table(prediction: Prediction) -> Table:
    """Returns the plan of a run as a table."""
    p = prediction
    table = Table(show_header=False, title="plan")
    table.add_row("compiling", f"{p.compile_seconds:.1f} s")
    table.add_row("one round", f"{p.seconds_per_round:.3g} s")
    table.add_row(
        f"{p.rounds:,} rounds",
        f"{p.seconds:,.0f} s" + f" ({p.seconds / 3600:.1f} h)" * (p.seconds > 3600),
    )
    table.add_row("memory", f"{p.memory_bytes / 2**30:.2f} GiB")
    return table


def metric_text(record: Record) -> str:
    """Returns the test accuracy of an evaluation, or the test loss of a task without accuracy."""
    name = primary_metric(record)
    value = record[f"test_{name}"]
    if value is None:
        return f"test {name} not finite"
    return f"test {name} {value:.1%}" if name == "accuracy" else f"test {name} {value:.3f}"


def virtual_text(record: Record) -> str:
    """Returns the virtual time after a round, to follow other text; empty without a clock."""
    seconds = record.get("virtual_seconds")
    return "" if seconds is None else f", virtual time {duration(seconds)}"


def _print_evaluation(console: Console, record: Record, total: int) -> None:
    """Prints a line where the record has an evaluation."""
    if "test_loss" in record:
        loss = record["val_loss"]
        validation = f"validation loss {'not finite' if loss is None else f'{loss:.3f}'}"
        left = (record["seconds"] or 0) * (total - record["round"])
        measured = f"{metric_text(record)}, {validation}{virtual_text(record)}"
        line = f"round {record['round']}/{total}  {measured}, about {left:.0f} s left"
        console.print(line, highlight=False)


class Prediction(NamedTuple):
    """The plan of a run."""

    rounds: int
    compile_seconds: float
    seconds_per_round: float
    """Without an evaluation."""
    seconds: float
    """All these rounds, without compiling."""
    memory_bytes: int
    """Device: arguments, results and scratch of a chunk. CPU: largest size of the process."""


def predict(sim: simulation.Simulation) -> Prediction:
    """Returns the plan of a run.

    Args:
        sim: as `simulation.simulation` returns it; its state is not changed.
    """
    config, compiled = sim.config, chunks.compile_programs(sim)
    last = min(config.rounds, 2)
    records = sim.experiment.records._replace(rounds=last, eval_every=last)
    two = sim._replace(experiment=sim.experiment._replace(records=records))
    start, durations, records = time.perf_counter(), [], []
    for _, new in chunks.run_chunks(two, compiled, sim.state, 0, is_single=True):
        durations.append(time.perf_counter() - start)
        records += new
        start = time.perf_counter()
    one_round = records[-1]["seconds"]  # the first round after compiling takes longer
    evaluations = math.ceil(config.rounds / config.eval_every)
    return Prediction(
        rounds=config.rounds,
        compile_seconds=compiled.seconds,
        seconds_per_round=one_round,
        seconds=config.rounds * one_round + evaluations * (durations[-1] - one_round),
        memory_bytes=_memory(compiled),
    )


def _memory(compiled: chunks.Programs) -> int:
    """Returns the bytes of a chunk on its device; on a CPU the largest size of the process."""
    if hardware.current().is_cpu:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(programs.program_bytes(compiled.chunk).values())
