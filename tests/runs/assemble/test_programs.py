"""Runs that differ in values only share their compiled programs."""

import functools
from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest
from support import linear, resolved, worlds
from support.files import one_line
from support.programs import compilations
from support.small_sweeps import assert_equal_runs

import fedvg_jax
from fedvg_jax import config, resolve
from fedvg_jax.config import Config
from fedvg_jax.config.options import as_reference
from fedvg_jax.engine import federated_round, schedule as schedules
from fedvg_jax.resolve.custom import Custom
from fedvg_jax.resolve.experiment import static_settings
from fedvg_jax.resolve.texts import settle
from fedvg_jax.runs.assemble import tables
from fedvg_jax.weightings import basic

SMALL = Config(rounds=2, eval_every=1, local_epochs=1, weighting="uniform", model="linear")


@functools.cache
def default_simulation():
    return resolve.experiment.simulation(SMALL)


def changed(settings: Config) -> Config:
    """Every value of `VALUES` that is a number, a truth value or one of several names, moved."""
    flat, moved = config.flatten(settings), {}
    for name in resolve.experiment.VALUES:
        value = flat[name]
        if type(value) is bool:
            moved[name] = not value
        elif isinstance(value, float):
            moved[name] = value / 2 + 0.1
        elif isinstance(value, int):
            moved[name] = value + 1
        elif names := config.SETTINGS[name].names:
            moved[name] = next(other for other in names if other != value)
    return config.apply(settings, moved, "test")


def program_text(settings: Config) -> str:
    """The jaxpr of a chunk of rounds, with the program made from just these settings."""
    sim = default_simulation()
    made = resolved.program(settings)
    hyper = resolve.method.scalars(settings)
    start = {"stats_too": as_reference(settings, "server-stats"), "variables": sim.state.variables}
    arguments = made.task, made.algorithm, settings.clients, hyper
    state = jax.eval_shape(lambda: federated_round.init_state(*arguments, **start))
    rounds = schedules.stack([sim.schedule(0)], tables.MAX_ROUNDS)
    return str(jax.make_jaxpr(made.chunk.__wrapped__)(state, np.int32(1), rounds, sim.data, hyper))


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "scaffold", "momentum": 0.5},
        {"algorithm": "fedadam", "weighting": "generalised", "weight_decay": 0.1},
        {"algorithm": "fedprox", "robust": "clipped_mean", "weighting": "fedvg", "tuning.steps": 1},
        {"algorithm": "elastic", "attack": "scaling", "lr_schedule": "exponential"},
    ],
    ids=lambda settings: settings["algorithm"],
)
def test_program_depends_on_static_settings_only(settings):
    whole = replace(changed(config.apply(SMALL, settings, "test")), clients=SMALL.clients)
    if whole.robust != "mean":
        whole = replace(whole, dp=SMALL.dp)
    static = resolve.experiment.static_settings(whole)
    assert static != whole
    assert resolved.experiment(whole).key == resolved.experiment(static).key
    assert program_text(whole).split() == program_text(static).split()


OBJECTS = {
    "aggregate": ({"robust": "trimmed_mean:0.3"}, fedvg_jax.robust.trimmed_mean(0.3)),
    "send": ({"send": "topk:0.05"}, fedvg_jax.compression.top_k(0.05)),
    "attack": ({"attack": "sign_flip"}, fedvg_jax.attacks.sign_flip()),
    "selection": ({"selection": "size"}, fedvg_jax.selection.by_size()),
    "algorithm": ({"algorithm": "scaffold"}, fedvg_jax.algorithms.scaffold()),
    "weighting": ({"weighting": "samples"}, fedvg_jax.weightings.samples()),
    "partition": ({"partition": "shards:3"}, fedvg_jax.partitioners.shards(3)),
}
"""Argument -> settings, and the object that they stand for."""


def wrapped(name, value):
    """The same object, of which the package cannot know that it is one of its own."""
    if not isinstance(value, tuple):
        return functools.partial(value)
    fields = {"weighting": "weigh", "selection": "choose", "partition": "divide"}
    field = fields.get(name, "init")
    function = getattr(value, field)

    def call(*arguments):
        return function(*arguments)

    return value._replace(**{field: call})


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_gives_the_bits_of_the_setting_that_names_it(name):
    settings, given = OBJECTS[name]
    named = fedvg_jax.run(replace(SMALL, **settings))
    assert_equal_runs(named, fedvg_jax.run(SMALL, **{name: wrapped(name, given)}))
    with pytest.raises(AssertionError):
        worlds.assert_close(named.variables, fedvg_jax.run(SMALL).variables, 0)


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_of_the_package_is_the_setting_that_names_it_and_a_changed_one_is_none(name):
    settings, given = OBJECTS[name]
    named = replace(SMALL, **settings)
    config, custom = settle(SMALL, Custom(**{name: given}))
    assert custom == Custom() and static_settings(config) == static_settings(named)
    other = wrapped(name, given)
    config, custom = settle(SMALL, Custom(**{name: other}))
    assert config == replace(SMALL, cache_dir=config.cache_dir) and getattr(custom, name) is other


def test_hyperparameters_beside_an_object_of_the_package_are_settings():
    scaffold = fedvg_jax.algorithms.scaffold()
    config, custom = settle(SMALL, Custom(algorithm=scaffold, hyper={"scaffold.eta_g": 0.5}))
    assert config.scaffold.eta_g == 0.5 and custom == Custom()
    unread = {"fedprox.mu": 0.5}  # which the run refuses as unknown
    assert settle(SMALL, Custom(algorithm=scaffold, hyper=unread))[1] == Custom(hyper=unread)
    with one_line("hyper"):
        fedvg_jax.run(SMALL, algorithm=scaffold, hyper=3)


def test_trials_of_a_custom_attack_have_the_corrupt_clients_of_their_seeds():
    """The ids are constants of a program, which other seeds must not share."""
    settings, attack = replace(SMALL, clients=8), wrapped("attack", fedvg_jax.attacks.sign_flip())
    trials = fedvg_jax.run_sweep(settings, {"seed": [0, 1, 2]}, attack=attack)
    for seed, trial in enumerate(trials):
        assert_equal_runs(trial.result, fedvg_jax.run(replace(settings, seed=seed), attack=attack))


def test_other_settings_of_jax_have_a_program_of_their_own():
    """Otherwise a run inside `jax.default_matmul_precision("highest")` would compute as the run before it."""
    fedvg_jax.run(SMALL)
    with jax.default_matmul_precision("highest"), compilations() as compiled:
        fedvg_jax.run(SMALL)
    assert {"jit(chunk)", "jit(evaluate)"} <= set(compiled)


def test_runs_of_other_values_compile_nothing_and_have_the_results_of_a_program_of_their_own():
    fedvg_jax.run(SMALL)
    other = replace(SMALL, seed=5, alpha=0.5, lr=0.05, partition_seed=3, rounds=3)
    with compilations() as compiled:
        shared = fedvg_jax.run(other)
    assert compiled == []
    # whose program is of this call
    alone = fedvg_jax.run(other, algorithm=fedvg_jax.algorithms.fedavg())
    assert_equal_runs(shared, alone)


def test_another_share_of_the_probe_s_rows_compiles_nothing_and_is_the_one_of_the_schedule():
    settings = replace(SMALL, algorithm="elastic")
    sims = []
    with compilations() as compiled:
        for ratio in (0.1, 0.9):
            sims.append(fedvg_jax.simulation(replace(settings, elastic={"ratio": ratio})))
            sims[-1].step(sims[-1].state, 0)
    assert compiled.count("jit(chunk)") == 1
    assert [sim.algorithm.probe_ratio for sim in sims] == [0.1, 0.9]
    own = fedvg_jax.simulation(settings, algorithm=fedvg_jax.algorithms.elastic(ratio=0.9))
    for sim, ratio in zip((*sims, own), (0.1, 0.9, 0.9), strict=True):
        schedule = sim.schedule(0)
        probed = [int(ratio * count) for count in schedule.num_samples]
        assert schedule.probe_steps.tolist() == [-(-n // settings.batch_size) for n in probed]


def test_runs_of_one_call_share_the_programs_of_what_it_is_given():
    def loss(output, y):
        return (output[0] - y.astype(output.dtype)) ** 2

    task = fedvg_jax.linen_task(nn.Dense(1), loss, linear.data()[0][:1])
    settings = replace(SMALL, partition="iid", rounds=1)
    given = {"data": linear.data(), "task": task, "weighting": lambda task: basic.uniform()}
    with compilations() as compiled:
        fedvg_jax.run_sweep(settings, {"seed": [0, 1]}, **given)
    assert compiled.count("jit(chunk)") == 1


@pytest.mark.parametrize("configured", [None, "/elsewhere"])
def test_every_simulation_keeps_programs_in_the_cache_unless_jax_has_a_folder(tmp_path, configured):
    before = dict(jax.config.values)
    jax.config.update("jax_compilation_cache_dir", configured)
    try:
        fedvg_jax.simulation(replace(SMALL, cache_dir=tmp_path))
        used = jax.config.values["jax_compilation_cache_dir"]
        assert used == (configured or str(tmp_path / "xla"))
    finally:
        for name in jax.config.values:
            if "cache_dir" in name or "cache_min" in name:
                jax.config.update(name, before[name])
