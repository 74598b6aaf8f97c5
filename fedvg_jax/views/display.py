"""What a run shows while it works: start lines, a progress bar, and a small table at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import fedvg_jax
from fedvg_jax.config import Config, cohort_size
from fedvg_jax.core import tree
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.runs import simulation
from fedvg_jax.runs.history import History, Record, is_lost, primary_metric
from fedvg_jax.views.dry_run import Prediction
from fedvg_jax.views.rounding import Rounding

DEMONSTRATION = (
    "This is the digits demonstration: real images, seconds on a laptop. For the paper's sets give a config and the"
    " folder of the raw files, e.g.\n  python -m fedvg_jax.sim --config configs/cifar10_lenet5.toml --data-dir DIR"
)


SELECTED_ON = {
    "shared": "validation: D_val, which FedVG's weights also use",
    "held_out": "validation: the half of D_val that the weights do not use",
}
"""`select` -> what "best on validation" means"""


def start(sim: simulation.Simulation, unused: Sequence[str] = ()) -> str:
    """Backend and device, data with counts, model with its size, method; settings of the file that the run does not
    use, where there are any."""
    config, device = sim.config, jax.devices()[0]
    where = f"{os.cpu_count()} cores" if device.platform == "cpu" else f"{len(jax.devices())} x {device.device_kind}"
    shared = f", cohorts shared by {simulation.num_devices(config)}" if simulation.num_devices(config) > 1 else ""
    sizes = {part: sum(map(len, rows)) for part, rows in sim.partition._asdict().items()}
    sizes["val"] = sim.statistics["validation"]["samples"]
    lines = [
        f"fedvg_jax {fedvg_jax.__version__} on {jax.default_backend()} ({where}{shared}), jax {jax.__version__}",
        f"data    {sim.arrays.name}: {contents(sim.arrays)};"
        f" {sizes['train']:,} to train, {sizes['val']:,} to validate, {sizes['test']:,} to test",
        f"clients {config.clients} {dealt(sim.statistics['partition'], config.alpha)}, {cohort_size(config)} a round,"
        f" {config.local_epochs} local epochs of batches of {config.batch_size} at lr {config.lr:g}",
        f"model   {config.model}, {tree.size(sim.state.variables.params):,} parameters"
        + (f", from {config.pretrained} but for the head" if config.pretrained else ""),
        f"method  {method(config)}",
        *([f"unused  {', '.join(unused)} of {config.config}"] if unused else []),
    ]
    return "\n".join(lines + [DEMONSTRATION] * (config.dataset == "digits"))


def contents(arrays: Arrays) -> str:
    """How many of what."""
    x, classes = arrays.x, len(arrays.class_names)
    what = "images" if x.ndim == 4 and x.dtype == "uint8" else f"rows of {x.dtype}"
    of = f"{classes} classes" if classes else f"targets {arrays.y.dtype} {list(arrays.y.shape[1:])}"
    return f"{len(x):,} {what} {' x '.join(map(str, x.shape[1:]))}, {of}"


def dealt(partition: str, alpha: float) -> str:
    """How the clients got their rows, in words."""
    by_name = partition not in ("dirichlet", "official")
    has_alpha = not by_name or partition in ("dirichlet_equal", "balanced_client", "quantity")
    return " ".join([f"by {partition}"] * by_name + [f"at alpha {alpha:g}"] * has_alpha)


def method(config: Config) -> str:
    """Algorithm and weighting in words."""
    vg = config.fedvg
    options = f" ({vg.norm} norm, {vg.granularity}, scored in {vg.mode} mode)" if "fedvg" in config.weighting else ""
    native = simulation.ALGORITHMS[config.algorithm](config).native_weighting
    own = f", which are {native}" if "native" in config.weighting else ""
    return f"{config.algorithm}, weights {config.weighting}{own}{options}"


@contextlib.contextmanager
def rounds(console: Console, total: int) -> Iterator[Callable[[list[Record]], None]]:
    """Shows rounds as they finish: a bar with accuracy, or loss, and time left; or a line per evaluation where there is
    no terminal."""
    if not _shows_bar(console):
        yield lambda records: _print_evaluation(console, records[-1], total)
        return
    columns = (TextColumn("round {task.completed}/{task.total}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
    with Progress(*columns, TextColumn("{task.fields[judgement]}"), *times, console=console) as progress:
        bar = progress.add_task("rounds", total=total, judgement="test  ...  ")

        def show(records: list[Record]) -> None:
            progress.update(bar, completed=records[-1]["round"])
            if records[-1].get("test_loss") is not None:
                progress.update(bar, judgement=judgement(records[-1]))

        yield show


def _shows_bar(console: Console) -> bool:
    """Returns whether a progress bar can be drawn: on a terminal, or in a notebook that has ipywidgets."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


@contextlib.contextmanager
def draws(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Shows how many partitions were drawn, once it takes more than an instant."""
    with Progress(
        TextColumn("drawing a partition"),
        BarColumn(),
        TextColumn("{task.completed:,} of at most {task.total:,} draws"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("draws", total=None, visible=False)
        yield lambda done, bound: progress.update(bar, completed=done, total=bound, visible=True)


@contextlib.contextmanager
def reads(console: Console, every: float = 5.0) -> Iterator[Callable[[int, int], None]]:
    """Tells how many images were decoded and the time left, once it takes more than an instant; a line every five
    seconds."""
    first = begun = told = None

    def tell(done: int, total: int) -> None:
        nonlocal first, begun, told
        now = time.monotonic()
        if begun is None:
            first, begun, told = done, now, now
        if now - told >= every:
            told, left = now, (now - begun) * (total - done) / (done - first)
            console.print(f"decoding images: {done:,} of {total:,}, about {left:.0f} s left", highlight=False)

    yield tell


def end(history: History) -> Table:
    """The run in a few lines."""
    summary = history.summary
    table = Table(show_header=False, title="interrupted" if summary["interrupted"] else None)
    table.caption = SELECTED_ON[summary.get("select", "shared")]
    for label, name in {
        "test accuracy, final round": "test_accuracy_final",
        "test accuracy, round best on validation": "test_accuracy_at_best_val",
        "test accuracy, maximum (chosen on test)": "test_accuracy_max",
        "always answering the largest class": "majority_accuracy",
        "test loss, final round": "test_loss_final",
        "test loss, round best on validation": "test_loss_at_best_val",
        "test loss, minimum (chosen on test)": "test_loss_min",
    }.items():
        if summary.get(name) is not None:
            table.add_row(label, f"{summary[name]:.4g}" if "loss" in name else f"{summary[name]:.2%}")
    if summary.get("lost_rounds"):
        table.add_row("rounds whose records are lost", str(len(summary["lost_rounds"])))
    table.add_row("rounds", f"{summary['rounds']} in {summary['run_seconds']:.1f} s")
    table.add_row("compiling", f"{summary['compile_seconds']:.1f} s")
    if summary["resumed_from"] is not None:
        table.add_row("in parts", f"{summary['parts']}, the last from round {summary['resumed_from']} on")
    table.add_row("run folder", str(history.folder))
    return table


def plan(prediction: Prediction, rounded: Rounding | None = None) -> Table:
    """What a run will take, and how far its number format moves a round."""
    p = prediction
    table = Table(show_header=False, title="plan")
    table.add_row("local steps a round, all clients", f"{p.steps_per_round:,.0f}")
    table.add_row(
        "images a round: trained on, scored", f"{p.train_images_per_round:,.0f}, {p.scoring_images_per_round:,}"
    )
    table.add_row("evaluations, images of each", f"{p.evaluations:,}, {p.eval_images:,}")
    table.add_row("compiling", f"{p.compile_seconds:.1f} s")
    table.add_row("a round", f"{p.seconds_per_round:.3g} s")
    table.add_row(f"{p.rounds:,} rounds", f"{p.seconds:,.0f} s" + f" ({p.seconds / 3600:.1f} h)" * (p.seconds > 3600))
    table.add_row("memory", f"{p.memory_bytes / 2**30:.2f} GiB")
    if rounded is not None:
        apart = f"within {rounded.weights:.2g} of a mean {rounded.mean_weight:.2g}, within {rounded.step:.1%}"
        table.add_row("beside float32: weights, step", apart)
    return table


def judgement(record: Record) -> str:
    """Test accuracy, or the loss of a task without one."""
    name, *_ = primary_metric(record)
    value = record[f"test_{name}"]
    if is_lost(record):
        return f"test {name} lost"
    return f"test {name} " + (
        "not finite" if value is None else f"{value:.1%}" if name == "accuracy" else f"{value:.3f}"
    )


def _print_evaluation(console: Console, record: Record, total: int) -> None:
    if "test_loss" in record:
        loss = record["val_loss"]
        validation = f"validation loss {'not finite' if loss is None else f'{loss:.3f}'}"
        left = (record["seconds"] or 0) * (total - record["round"])
        line = f"round {record['round']}/{total}  {judgement(record)}, {validation}, about {left:.0f} s left"
        console.print(line, highlight=False)
