"""Functions of the public API that compose several packages: whole runs, and the parts of a research script."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import jax
import numpy as np

from fedvg_jax.config import Config
from fedvg_jax.core import checks
from fedvg_jax.core.types import (
    Batch,
    Data,
    Executor,
    Metric,
    Schedule,
    Task,
    Tree,
    UsageError,
    Variables,
)
from fedvg_jax.data import user_data
from fedvg_jax.engine import executors, schedule
from fedvg_jax.engine.evaluate import ROWS, make_evaluate
from fedvg_jax.host import processes
from fedvg_jax.resolve import experiment as experiments
from fedvg_jax.resolve.custom import Objects, code_of, custom_of, names_objects, new_functions
from fedvg_jax.resolve.texts import settle
from fedvg_jax.runs import chunks, loop
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.placement.client_states import round_up
from fedvg_jax.runs.record import folder as run_folder, history
from fedvg_jax.runs.record.history import History, Record
from fedvg_jax.views import output

if TYPE_CHECKING:
    from fedvg_jax.study.executors import ExecutorOrMaker
    from fedvg_jax.study.sweep_folder import SweepResult

Metrics = Mapping[str, Callable[[Variables, Data], Any] | Metric]
"""Name -> function of the global model and the data, or a `Metric`."""


@names_objects
def run(
    config: Config | None = None,
    *,
    callbacks: Sequence[loop.Callback] = (),
    on_records: Callable[[list[Record]], None] | None = None,
    metrics: Metrics | None = None,
    progress: bool | None = None,
    **objects: Unpack[Objects],
) -> History:
    """Returns the history of one federated run.

    Args:
        config: settings; defaults to the digits demonstration.
        data: a pair (x, y) of arrays of any rank, `fedvg_jax.Arrays`, or a DataFrame, in place of the data set.
        label, group: columns of a DataFrame: the labels, and the groups, such as hospitals. Others are inputs.
        transformer: of scikit-learn, such as a ColumnTransformer, that encodes the inputs of a DataFrame. It is fitted
            to the training rows of all clients. By default missing values are imputed, numbers scaled, and categories
            one-hot encoded.
        partition: (train, val, test), each with one array of rows per client; or a list of the rows of every client,
            which are then split as the config specifies; or a partitioner, such as `partitioners.shards(3)`.
        task: a model and its loss, e.g. of `linen_task`, in place of the config's.
        algorithm, weighting: replace what the config names; a weighting may also be a function task -> `Weighting`. An
            object that a setting names, such as `algorithms.scaffold()`, is recorded as that setting.
        selection: of the cohorts, in place of the config's.
        aggregate: rule that aggregates the clients' models, such as `robust.krum(2, 3)`, in place of the config's:
            (hyper, global model, clients' models [K, ...], weights [K]) -> new global model.
        send: how clients send their updates, such as `compression.top_k(0.01)`, in place of the config's.
        attack: what a corrupt client returns, such as `attacks.sign_flip(2.0)`, in place of the config's:
            (hyper, key, global parameters, their difference from the trained ones) -> returned parameters.
        hyper: name -> value of hyperparameters that the custom algorithm or weighting declares.
        clock: how long clients take, in place of the config's.
        initial: variables to start from, in place of `task.init`. A resumed run starts from its checkpoint.
        callbacks: called after every round with (record, state); chunks are then one round long. The record is a copy.
            The model and the server's state in `state` may be kept; the client states are valid during the call
            only. One that raises `StopRun` ends the run after its round. Where the host holds
            states, `state.clients` has rows for sampled clients only, and `state.client_ids` are their numbers.
            Where several devices divide them, the last rows may be padding.
        on_records: called after every chunk of rounds with the list of copies of its records. It does not shorten
            chunks, so it costs less than `callbacks`, which are for those who need the state. A resumed run first
            passes the records before its checkpoint. If it raises `StopRun`, the run ends after the chunk.
        metrics: name -> function of (global model, data) that returns one number, or `fv.Metric(function,
            better="lower")`, which also says what a report compares it by; recorded under that name at every
            evaluation. `data.pool` and its tables of rows are as in a round, under `--placement host` NumPy arrays.
        progress: whether to show what the command line shows: settings, a progress bar with the time left, and a table
            of results. None shows it where standard output is a terminal or the cell of a notebook.

    Returns:
        The history; it is also written to `config.out` if that is set.

    Raises:
        UsageError: settings or files cannot work, before anything is computed; or a model or a weighting breaks its
            contract, with the leaf and the expected shape.
        DivergedError: a UsageError with the `history` so far; a client or the loss diverged, and `nonfinite` is
            "raise".
        KeyboardInterrupt: Ctrl-C was pressed; with a run folder, after a checkpoint.

    >>> run(Config(rounds=2), metrics={"test_loss": lambda model, data: 0.0})
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: metric 'test_loss' must be a text that is no name of the history; give it another
    """
    settings, custom = settle(Config() if config is None else config, custom_of(**objects))
    has_folder = settings.out is not None or settings.resume is not None
    with processes.together():
        output.check_targets(settings.export, settings.track, has_folder)
    config = run_folder.choose_folder(settings, run_folder.settings_to_resume)
    if settings.resume and config.out is None:
        raise UsageError(
            "Config: resume auto finds no run below runs/, and without out a new one is not stored; set out"
        )
    metrics = _checked_metrics(metrics)
    for callback in callbacks:
        _check_arguments(callback, "a callback", "record, state")
    if on_records is not None:
        _check_arguments(on_records, "on_records", "records")
    code = code_of(custom, metrics) if config.out else {}  # only a manifest has it
    fields = {"metrics": metrics, "code": code}
    observers = {"callbacks": callbacks, "on_records": on_records}

    def make() -> Simulation:
        return experiments.simulate(config, custom)._replace(**fields)

    if _is_shown(progress):
        from rich.console import Console

        from fedvg_jax.views import display

        console = Console(quiet=not processes.is_first())
        finished = display.run(console, make, **observers)
    else:
        sim = make()
        finished = output.run_simulation(sim, **observers)
        loop.export(sim, finished)
    stopped_by = finished.summary["stopped_by"]
    if stopped_by == "SIGINT":  # ends a caller's loop over runs, too
        raise KeyboardInterrupt(
            f"stopped after round {len(finished.records)}; run folder: {finished.folder}"
        )
    if stopped_by is not None:  # all files are written; the signal now has its usual effect
        signal.raise_signal(signal.Signals[stopped_by])
    return finished


def _is_shown(progress: bool | None) -> bool:
    """Returns whether a call shows its progress; by default where standard output is a terminal or a notebook."""
    if progress is not None:
        return progress
    from rich.console import Console

    console = Console()
    return console.is_terminal or console.is_jupyter


def _checked_metrics(metrics: Metrics | None) -> dict[str, Metric]:
    """Returns the metrics of a call; UsageError for one that is no function, or has a name of the history."""
    if not isinstance(metrics or {}, Mapping):
        raise UsageError(f"metrics must be a dict, name -> function; got {metrics!r:.100}")
    checked = {}
    for name, measure in (metrics or {}).items():
        metric = measure if isinstance(measure, Metric) else Metric(measure)
        _check_arguments(metric.function, f"metric '{name}'", "model, data")
        if metric.rows not in ("val", "test") or metric.better not in (None, "higher", "lower"):
            raise UsageError(
                f"metric '{name}': rows must be 'val' or 'test', and better 'higher' or 'lower'; got {metric[1:]}"
            )
        if not isinstance(name, str) or history.is_reserved(name) or name in history.BETTER:
            raise UsageError(
                f"metric {name!r} must be a text that is no name of the history; give it another"
            )
        checked[name] = metric
    return checked


def _check_arguments(function: Callable, what: str, arguments: str) -> None:
    """Raises UsageError for what is no function of these arguments.

    >>> _check_arguments(lambda record: None, "a callback", "record, state")
    Traceback (most recent call last):
        ...
    fedvg_jax.UsageError: a callback is called as f(record, state); got (record)
    """
    got = f"{function!r:.100}"
    try:
        got = inspect.signature(function)
        got.bind(*arguments.split(", "))
    except TypeError:
        raise UsageError(f"{what} is called as f({arguments}); got {got}") from None
    except ValueError:  # a builtin has no signature
        return


@names_objects
def run_sweep(
    config: Config | None = None,
    axes: Mapping[str | tuple[str, ...], Any] = {},
    out: Path | str | None = None,
    *,
    metrics: Metrics | None = None,
    tune: Mapping[str, Sequence] | None = None,
    tune_seeds: str | Sequence[int] | None = None,
    tune_metric: str | None = None,
    jobs: int | str = 1,
    executor: ExecutorOrMaker | None = None,
    shard: str | None = None,
    progress: bool | None = None,
    **objects: Unpack[Objects],
) -> list[SweepResult]:
    """Returns the results of one run for every combination of settings; runs of one program are compiled once.

    Args:
        config: settings that all runs share; defaults to the digits demonstration.
        axes: setting, "method" or "fidelity" -> its values, which are crossed with the values of other axes; a tuple of
            settings -> tuples of their values. Seeds may be a range "0:5". As in `run`, a seed also draws the
            partition, unless the config or an axis has a `partition_seed`. "hyper.NAME" is a hyperparameter that
            `algorithm` or `weighting` declares. Values of "weighting", "algorithm", "task", "selection", "robust",
            "send", "attack" and "partition" may be objects: {"root": root, "fedvg": "fedvg"}. Values of "method" may
            be bundles: {"mine": fv.Method(algorithm=a, weighting=w), "fedavg": "fedavg"}. Tables, figures and folders
            have these names.
        out: folder of the sweep. The same call continues a sweep that was stopped; finished trials are not run again,
            and refused if they were computed with another object or metric than this call has.
        metrics: as in `run`, for all runs; a report compares them by name.
        tune: setting -> values. Separate runs, in the folder `tuning` of `out`, choose the value with the best result
            on D_val for every combination of the axes without seeds, as with `--tune`. sweep.json has the choices.
        tune_seeds: seeds of these runs; None for "1000:1002".
        tune_metric: metric on D_val that chooses: "loss", "balanced_accuracy", or the name of one of `metrics` that is
            an `fv.Metric` with rows="val" and better=. None for accuracy, or the loss of a task without it.
        jobs: processes of this machine that share the runs, or "auto": one per core, if runs use one core each. With 1,
            this process computes them. Scripts that are started with one `out` share its runs, too.
        executor: a `concurrent.futures.Executor` that computes the runs, such as `client.get_executor()` of Dask, or a
            function without arguments that returns one, which is called again if the executor breaks. Objects and
            functions are sent by `cloudpickle`. The processes must see `out`, or return histories without it.
        shard: "I/N", the part of the runs that this call computes, for calls that nothing coordinates. Results of other
            parts are in the list if `out` has them.
        progress: whether to print a line for every run; None as in `run`.
        **objects: objects in place of settings, as in `run`, for all runs.

    Returns:
        One result for every combination, in the order of the axes. Combinations that differ only in settings they do
        not use are one. A run that diverged or failed has a `Failure` in place of its history.

    Raises:
        UsageError: the settings of some combination cannot work, before the first run; or `out` holds something else.
        KeyboardInterrupt: Ctrl-C was pressed; with a folder, after a checkpoint.

    >>> results = run_sweep(Config(rounds=1, clients=4), {"alpha": [1.0, 10.0], "seed": "0:2"})
    >>> [r.name for r in results]
    ['alpha=1,seed=0', 'alpha=1,seed=1', 'alpha=10,seed=0', 'alpha=10,seed=1']
    >>> results[3].values, results[3].result.summary["rounds"]
    ({'alpha': 10.0, 'seed': 1}, 1)
    """
    from fedvg_jax.study import sweeps, tuning
    from fedvg_jax.study.trial_runs import Recipe

    start = Config() if config is None else config
    folder = Config(out=out).out  # pyright: ignore[reportArgumentType]  a text becomes a path
    measured = _checked_metrics(metrics)
    return sweeps.run_sweep(
        start,
        axes,
        folder,
        Recipe(custom_of(**objects), metrics=measured),
        tuning.make_tuning(tune or {}, tune_seeds, tune_metric, measured),
        jobs=jobs,
        executor=executor,
        shard="1/1" if shard is None else shard,
        is_shown=_is_shown(progress),
    )


def make_schedule(
    number: int,
    client_rows: Sequence[np.ndarray],
    *,
    cohort_size: int | None = None,
    local_epochs: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    executor: Executor | None = None,
    probe_ratio: float = 0.0,
) -> Schedule:
    """Returns the schedule of one round: its cohort and all minibatches, drawn from (seed, round, client).

    Args:
        number: of the round, from 0.
        client_rows: the training rows of every client, each int [n_k].
        cohort_size: K, clients of a round; defaults to all.
        local_epochs: epochs of every client.
        batch_size: B, rows of a minibatch. A last minibatch of a single row is skipped.
        seed: of the random streams.
        executor: the executor of the round; defaults to one client at a time, which also fits `unrolled`.
        probe_ratio: share of a client's rows that the algorithm's probe reads, for an algorithm with one, such as
            `elastic`; in a run it is `algorithm.probe_ratio`.

    Raises:
        UsageError: there is no client, rows are no integers >= 0, or a number is out of its range.

    >>> schedule = make_schedule(0, [np.arange(4), np.arange(4, 7)], batch_size=2, local_epochs=3)
    >>> dict(sorted(zip(schedule.clients.tolist(), schedule.num_steps.tolist())))  # client 1: a single row is skipped
    {0: 6, 1: 3}
    """
    rows = [_checked_rows(mine) for mine in client_rows]
    num_clients = len(rows)
    cohort_size = num_clients if cohort_size is None else cohort_size
    is_allowed = 1 <= cohort_size <= num_clients and min(local_epochs, batch_size) >= 1
    if not (is_allowed and 0 <= probe_ratio <= 1):
        raise UsageError(
            f"cohort_size must be from 1 to the {num_clients} clients of client_rows, local_epochs and batch_size at"
            f" least 1, probe_ratio from 0 to 1; got {cohort_size}, {local_epochs}, {batch_size}, {probe_ratio}"
        )
    executor = executor or executors.lanes(1)
    drawn = schedule.make(
        number,
        rows,
        seed=seed,
        cohort_size=cohort_size,
        local_epochs=(local_epochs, local_epochs),
        batch_size=batch_size,
        num_lanes=executor.num_lanes,
        lanes_together=executor.lanes_together,
        probe_ratio=probe_ratio,
    )
    most_epochs = local_epochs + (probe_ratio > 0)
    capacity = schedule.capacity(sum(map(len, rows)), cohort_size, most_epochs, batch_size)
    return schedule.padded(drawn, capacity)


def _checked_rows(rows: Any) -> np.ndarray:
    """Returns one client's rows, int32 [n_k]."""
    array = np.asarray(rows)
    is_wrong = array.dtype.kind not in "iu" or ((array < 0) | (array >= 2**31)).any()
    if array.ndim != 1 or (array.size and is_wrong):
        raise UsageError(
            f"client_rows must be a list of the rows of each client, integers from 0 to 2**31 - 1; got {rows!r:.99}"
        )
    return array.astype(np.int32)


def evaluate(
    model: Task | Simulation,
    variables: Variables,
    data: Data | Tree | None = None,
) -> dict[str, float]:
    """Returns the metrics of a model's variables, in evaluation mode.

    Every call traces a task anew, with the values that its functions read, and compiles it. A simulation compiles once.

    Args:
        model: a task, or a simulation that has one.
        variables: e.g. `history.variables` or `state.variables`.
        data: a pair (x, y), `Batch(x, y)`, or a pytree of arrays [T, ...] as the task's `measure` takes it; all rows
            are evaluated. Or the `Data` of a simulation. Defaults to the data of the simulation. For a simulation of a
            DataFrame, give another one, or (inputs, y). With it, as with `normalise` columns, give rows as in the data
            set; the function encodes and scales their columns in the same way.

    Returns:
        The task's metrics by name, such as `loss` and `accuracy`; for `Data` with the prefixes `val_` and `test_`.

    Raises:
        UsageError: there are no data, or no rows; or the task does not take them.

    >>> def measure(params, stats, batch, mask):
    ...     return {"sum": jax.numpy.where(mask, batch, 0).sum() * params["w"], "rows": mask.sum()}
    >>> task = Task(None, None, None, measure, lambda sums: {"loss": sums["sum"] / sums["rows"]}, str)
    >>> evaluate(task, Variables({"w": jax.numpy.float32(2)}, {}), np.array([1, 2, 3], np.float32))
    {'loss': 4.0}
    """
    if isinstance(model, Simulation):
        sim, task, variables = model, model.model, model.whole(variables)
        measure = model.cached("evaluate", lambda: jax.jit(make_evaluate(task)))
        data = model.data if data is None else data
    else:
        sim, task, measure = None, model, jax.jit(make_evaluate(new_functions(model)))
    if data is None:
        raise UsageError("evaluate needs data: a batch, or the Data of a simulation")
    if isinstance(data, Data):
        if sim and sim.host_rows and data is sim.data:
            measure = sim.host_rows.evaluating(sim.evaluate)
        metrics = {}
        for part, rows in chunks.evaluation_tables(data).items():
            named = _metrics(task, measure(variables, data.pool, rows))
            metrics |= {f"{part}_{name}": value for name, value in named.items()}
        return metrics
    kind = type(data).__name__
    if sim and sim.scaled_by:
        data = sim.scaled_by.batch(data)
    if isinstance(data, tuple) and not hasattr(data, "_fields") and len(data) == 2:
        data = Batch(*map(_as_array, data, "xy"))
    num_rows = checks.num_rows(data, "data")
    count = round_up(-(-num_rows // ROWS))  # so that tables share programs
    rows = schedule.table(np.arange(num_rows, dtype=np.int32), ROWS, count)
    data = jax.tree.map(lambda leaf: _padded(leaf, rows.size), data)
    with checks.calling(
        f"evaluate takes one batch as the task does, such as (x, y), got a {kind}: task.measure"
    ):
        return _metrics(task, measure(variables, data, rows))


def _as_array(part: Any, name: str) -> Any:
    """Returns a DataFrame or a column as the array of its numbers, and anything else as it is."""
    return user_data.as_array(part, name) if hasattr(part, "to_numpy") else part


def _padded(leaf: Any, num_rows: int) -> np.ndarray:
    """Returns an array with further rows of 0, made by NumPy: JAX would compile for every number of rows."""
    array = np.asarray(leaf)
    return np.pad(array, [(0, num_rows - len(array)), *[(0, 0)] * (array.ndim - 1)])


def _metrics(task: Task, sums: Tree) -> dict[str, float]:
    return {name: float(value) for name, value in task.metrics(jax.device_get(sums)).items()}
