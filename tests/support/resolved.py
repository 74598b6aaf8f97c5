"""Parts of an experiment from settings alone, without a partition."""

import numpy as np

from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.resolve.experiment import (
    _cohorts,
    _folder,
    _privacy,
    _skips_lone_row,
    static_settings,
)
from fedvg_jax.runs.assemble import programs
from fedvg_jax.runs.assemble.simulation import Simulation
from fedvg_jax.runs.experiment import Experiment, Population


def experiment(settings: Config, shape=(8, 8, 1), num_classes=10, task=None) -> Experiment:
    """An experiment for the program of a model of these rows and classes."""
    y = np.arange(num_classes, dtype=np.int32)
    rows = np.zeros((num_classes, *shape), np.uint8)
    arrays = Arrays("rows", rows, y, tuple(map(str, y)), num_classes)
    custom = Custom(task=task)
    algorithm = resolve.method.make_algorithm(settings, custom)
    weightings = resolve.method.named_weightings(settings, custom, algorithm).values()
    return Experiment(
        settings=settings,
        custom=custom.names,
        key=(static_settings(settings), shape, num_classes, task),
        population=Population(arrays, None, None, 0),
        statistics={},
        model=resolve.model.make_model(settings, arrays, task),
        method=resolve.method.make_method(settings, custom),
        hyper=lambda algorithm, weighting: resolve.method.make_hyper(
            settings, algorithm, weighting
        ),
        executor=resolve.machine.make_executor(settings),
        devices=settings.devices,
        placement=settings.placement,
        rounds=settings.rounds,
        eval_every=settings.eval_every,
        skips_nonfinite=False,
        folder=_folder(settings),
        cohorts=_cohorts(settings, algorithm, None),
        skips_lone_row=_skips_lone_row(settings, weightings),
        recorded=frozenset(),
        privacy=_privacy(settings, custom, weightings),
    )


def program(settings: Config, shape=(8, 8, 1), num_classes=10, task=None) -> programs.Program:
    return programs.make_program(
        experiment(settings, shape, num_classes, task), programs.new_cache()
    )


def written_as(sim: Simulation, settings: Config, custom=None) -> Simulation:
    """A simulation whose run is recorded under other settings, such as another folder."""
    changed = sim.experiment._replace(
        settings=settings,
        folder=_folder(settings),
        rounds=settings.rounds,
        eval_every=settings.eval_every,
        skips_nonfinite=settings.nonfinite == "skip",
        devices=settings.devices,
    )
    return sim._replace(experiment=changed if custom is None else changed._replace(custom=custom))
