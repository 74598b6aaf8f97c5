"""Runs that differ in values only share their compiled programs."""

import contextlib
import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from small_sweeps import assert_equal_runs

import fedvg_jax
from fedvg_jax import config
from fedvg_jax.config import Config
from fedvg_jax.engine import federated_round
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs import programs, registry, simulation

IMAGES = programs.Images((8, 8, 1), 10)
SMALL = Config(rounds=2, eval_every=1, local_epochs=1, weighting="uniform", model="linear")


@functools.cache
def default_simulation():
    return simulation.simulation(SMALL)


def changed(settings: Config) -> Config:
    """Every value of `programs.VALUES` that is a number, a truth value or one of several names, moved."""
    flat, moved = config.flatten(settings), {}
    for name in programs.VALUES:
        if isinstance(flat[name], float):
            moved[name] = flat[name] / 2 + 0.1
        elif type(flat[name]) is int:
            moved[name] = flat[name] + 1
        elif type(flat[name]) is bool:
            moved[name] = not flat[name]
        elif names := config.SETTINGS[name].names:
            moved[name] = next(value for value in names if value != flat[name])
    return config.apply(settings, moved, "test")


def program_text(settings: Config) -> str:
    """The jaxpr of a chunk of rounds, with the program made from just these settings."""
    sim = default_simulation()
    made = programs._make(settings, IMAGES, None, None, None, False)
    hyper = registry.make_hyper(settings)
    start = (jax.random.key(0), hyper, settings.server_stats == "official", sim.state.variables)
    state = jax.eval_shape(lambda: federated_round.init_state(made.task, made.algorithm, settings.clients, *start))
    rounds = schedules.stack([sim.schedule(0)], simulation.MAX_ROUNDS)
    return str(jax.make_jaxpr(made.chunk.__wrapped__)(state, np.int32(1), rounds, sim.data, hyper))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.slow),  # the others have its settings and more
        {"algorithm": "scaffold", "momentum": 0.5},
        {"algorithm": "fedadam", "weighting": "generalised", "weight_decay": 0.1},
        {"algorithm": "feddyn", "robust.rule": "clipped_mean", "weighting": "fedvg", "tuning.steps": 1},
        {"algorithm": "elastic", "attack.kind": "scaling", "lr_schedule": "exponential"},
    ],
    ids=lambda settings: settings.get("algorithm", "default"),
)
def test_program_depends_on_static_settings_only(settings):
    whole = changed(config.apply(SMALL, settings, "test"))
    whole = replace(whole, clients=SMALL.clients)
    static = programs.static_settings(whole)
    assert static != whole
    assert program_text(whole).split() == program_text(static).split()


@contextlib.contextmanager
def compiled_programs():
    """Yields a list of the names of programs, which grows as they are compiled or fetched from the cache."""
    names = []

    def listen(event, duration, fun_name="", **_):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax._src.monitoring.unregister_event_duration_listener(listen)


def test_other_seed_alpha_or_learning_rate_compiles_nothing():
    fedvg_jax.run(SMALL)
    with compiled_programs() as compiled:
        histories = [
            fedvg_jax.run(replace(SMALL, **changes))
            for changes in ({"seed": 1}, {"alpha": 0.5}, {"lr": 0.1}, {"partition_seed": 3}, {"rounds": 3})
        ]
    assert compiled == []
    finals = {history.records[-1]["train_loss"] for history in histories}
    assert len(finals) == len(histories)  # they are different runs


def test_other_settings_of_jax_have_a_program_of_their_own():
    """Otherwise a run inside `jax.default_matmul_precision("highest")` would compute as the run before it."""
    calls = []

    class Counted:
        def lower(self, *_):
            calls.append(self)
            return self

        def compile(self):
            return len(calls)

    sim, counted = fedvg_jax.simulation(SMALL), Counted()
    rounds, data = schedules.stack([sim.schedule(0)], 1), sim.data._replace(training=sim.data.pool)

    def compiled():
        return programs.compile_for(counted, counted, sim.state, rounds, data, sim.hyper)[0]

    first, again = compiled(), compiled()
    with jax.default_matmul_precision("highest"):
        other = compiled()
    assert (first, again, other) == (1, 1, 2)


def test_shared_program_gives_the_results_of_a_separate_one():
    other = replace(SMALL, seed=5, lr=0.05)
    shared = fedvg_jax.run(other)
    programs._make.store.cache_clear()
    programs._compiled.store.cache_clear()
    alone = fedvg_jax.run(other)
    assert_equal_runs(shared, alone)
