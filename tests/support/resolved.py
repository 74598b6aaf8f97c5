"""Parts of an experiment from settings alone, without a partition."""

import numpy as np

from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.resolve.experiment import _cohorts, _privacy, _records, _tables, static_settings
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.experiment import Cohorts, Experiment, Population, Privacy, Tables


def cohorts(settings: Config) -> Cohorts:
    """The cohorts of a run, with the probe that its algorithm has."""
    return _cohorts(settings, resolve.method.make_algorithm(settings, Custom()))


def tables(settings: Config) -> Tables:
    return _tables(settings, resolve.method.make_algorithm(settings, Custom()))


def privacy(settings: Config) -> Privacy | None:
    custom = Custom()
    return _privacy(settings, custom, resolve.method.make_algorithm(settings, custom))


def experiment(settings: Config, shape=(8, 8, 1), num_classes=10, task=None) -> Experiment:
    """An experiment for the program of a model of these rows and classes."""
    y = np.arange(num_classes, dtype=np.int32)
    rows = np.zeros((num_classes, *shape), np.uint8)
    arrays = Arrays("rows", rows, y, tuple(map(str, y)), num_classes)
    custom = Custom(task=task)
    return Experiment(
        settings=settings,
        custom=custom.names,
        key=(static_settings(settings), shape, num_classes, task),
        population=Population(arrays, None, None),
        statistics={},
        model=resolve.model.make_model(settings, arrays, task),
        method=resolve.method.make_method(settings, custom),
        hyper=lambda algorithm, weighting: resolve.hyperparameters.make_hyper(
            settings, algorithm, weighting
        ),
        executor=resolve.machine.make_executor(settings),
        cohorts=cohorts(settings),
        tables=tables(settings),
        records=_records(settings),
    )


def program(settings: Config, shape=(8, 8, 1), num_classes=10, task=None) -> programs.Program:
    return programs.make_program(experiment(settings, shape, num_classes, task))


def written_as(sim: Simulation, settings: Config, custom=None) -> Simulation:
    """A simulation whose run is recorded under other settings, such as another folder."""
    records = _records(settings)
    changed = sim.experiment._replace(settings=settings, records=records)
    return sim._replace(experiment=changed if custom is None else changed._replace(custom=custom))
