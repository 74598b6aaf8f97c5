"""Every difference between the papers, the published code and the defaults has settings or a reason.

The settings of `--fidelity official` change what a run is made of.
"""

import functools
import random
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import linear, worlds
from support.cases import naming

from fedvg_jax import commands, config, resolve
from fedvg_jax.algorithms.elastic import official_sensitivity, sensitivity
from fedvg_jax.config import Config, options, presets
from fedvg_jax.core.types import Anchor, ClientReturn, Cohort
from fedvg_jax.data.partitions import client_rows, partitioners
from fedvg_jax.engine import schedule as schedules
from fedvg_jax.runs.assemble import tables


def test_every_row_has_a_reason_or_valid_settings_that_no_other_row_has():
    """`apply` refuses unknown names and types, `check` refuses unknown values."""
    distinct = {item for row in presets.DIFFERENCES for item in row.settings.items()}
    assert max(Counter(name for name, _ in distinct).values()) == 1
    assert options.REFERENCES.keys() == presets.SWITCHES.keys()
    for row in presets.DIFFERENCES:
        with naming(row.id):
            settings = (
                {"reference": row.id}
                if row.is_switch and not row.by_default
                else dict(row.settings)
            )
            assert settings or row.reason or row.by_default
            changed = config.flatten(config.check(config.apply(Config(), settings, row.id)))
            assert {name: changed[name] for name in settings} == settings


def test_profile_changes_only_its_settings():
    official, corrected = (
        config.flatten(commands.parse(["--fidelity", name])) for name in ("official", "corrected")
    )
    moved = {name: value for name, value in official.items() if corrected[name] != value}
    assert corrected == config.flatten(commands.parse([])) and moved == presets.FIDELITY["official"]


# --- what the settings change

SIZES = np.array([12, 9, 17, 20, 1])
"""Training rows of five clients, in minibatches of 4; three clients have a minibatch of a single row."""
SPLIT = np.split(np.arange(240), np.cumsum([*SIZES, *5 * [5], *5 * [3]]))[:-1]
PARTITION = SPLIT[:5], SPLIT[5:10], SPLIT[10:]
ROWS = linear.data()[0], np.arange(240) % 3
EPOCHS = 2


def _counting_loss(params, stats, batch, mask, train):
    value, _ = linear.TASK.loss(params, {}, batch, mask, train)
    return value, {"steps": stats["steps"] + 1} if train else stats


COUNTING = linear.TASK._replace(
    init=lambda key: linear.TASK.init(key)._replace(stats={"steps": jnp.zeros(())}),
    loss=_counting_loss,
)
"""Linear regression whose running statistic counts local steps."""
ONE, ZERO = {"w": jnp.ones(())}, {"w": jnp.zeros(())}


@functools.cache
def simulated(profile, flags, task=linear.TASK):
    settings = commands.parse(["--fidelity", profile, "--validation.rho", "0.5", *flags.split()])
    changes = {
        "clients": 5,
        "join_ratio": 1.0,
        "local_epochs": EPOCHS,
        "batch_size": 4,
        "alpha": 10.0,
    }
    settings = replace(settings, **changes, devices="1", lanes="1")
    return resolve.experiment.simulation(settings, data=ROWS, partition=PARTITION, task=task)


def by_client(name):
    """Returns a function of a simulation: a field of the first round's schedule, client after client."""

    def values(sim):
        schedule = sim.schedule(0)
        return getattr(schedule, name)[np.argsort(schedule.clients)].tolist()

    return values


def block(sim):
    task = resolve.model.named_task(replace(sim.config, model="resnet18"), (32, 32, 3), 3)
    return task.block_of("layer2_0/bn1/scale")


def drawn(sim):
    return client_rows.sizes(resolve.data.make_partition(sim.config, sim.arrays).train).tolist()


def sizes_of_kind(kind, seed):
    settings = {"alpha": 10.0, "num_clients": 5} | {
        n: getattr(Config(), n) for n in ("min_samples", "test_ratio")
    }
    settings |= {"val_ratio": Config().val_ratio, "seed": seed}
    partitioner = partitioners.BY_NAME[kind].made(2)
    drawn = partitioners.draw_partition(ROWS[1].astype(np.int32), partitioner, **settings)
    return client_rows.sizes(drawn.train).tolist()


def native_signal(sim):
    """Returns what the weights of a client of 7 rows are proportional to."""
    return float(
        sim.weighting.signal(
            sim.hyper, ClientReturn(sim.state.variables, jnp.int32(7), ONE), sim.data
        )
    )


def stored_state(sim):
    """Returns c_k+ of a client that has moved from 1 to 0 by steps of length 1."""
    return float(
        sim.algorithm.report(sim.hyper, ZERO, Anchor(ONE, ZERO, ZERO), jnp.ones(()))[0]["w"]
    )


def regularisation(sim):
    """Returns what FedDyn adds to the gradient of a client at 1, whose global model is 0, in units of alpha."""
    corrected = sim.algorithm.correct(sim.hyper, ZERO, ONE, Anchor(ZERO, (), ZERO))["w"]
    return float(corrected / sim.hyper["feddyn.alpha"])


def residual_of_second_round(sim):
    """Returns FedDyn's R in the second round, of an update 1 and duals 0."""
    (dual, _), _ = sim.algorithm.init(sim.hyper, ZERO)
    return float(
        sim.algorithm.residual(
            sim.hyper, (dual, jnp.int32(1)), ZERO, Cohort(ONE, ZERO, (), {}, {}, 5)
        )[0]["w"]
    )


def second_moment(sim):
    """Returns the start of v, in units of eps^2."""
    return (
        max(float(leaf.max()) for leaf in jax.tree.leaves(sim.state.server))
        / sim.config.fedopt.eps**2
    )


STEPS = [EPOCHS * -(-n // 4) for n in SIZES.tolist()]
EFFECTS = {
    "single-rows": (
        "--method fedavg", by_client("num_steps"), STEPS, [EPOCHS * (n // 4 + (n % 4 > 1)) for n in SIZES.tolist()]
    ),
    "block": ("--method fedvg", block, "layer2_0", "layer2"),
    "scaffold-steps": ("--method scaffold", by_client("num_steps"), STEPS, [2, 2, 2, 2, 0]),
    "scaffold-state": ("--method scaffold", stored_state, 1, 0),
    "feddyn-regulariser": ("--method feddyn", regularisation, 1, 0),
    "feddyn-weights": ("--method feddyn", native_signal, 1, 7),
    "feddyn-average": ("--method feddyn+fedvg", residual_of_second_round, 0, 1),
    "elastic-sensitivity": (
        "--method elastic", lambda sim: sim.algorithm.probe, sensitivity, official_sensitivity
    ),
    "elastic-rows": (
        "--method elastic", by_client("num_samples"), SIZES.tolist(), [n - int(0.3 * n) for n in SIZES.tolist()]
    ),
    "adaptive-servers": ("--algorithm fedadam", second_moment, pytest.approx(1), 0),
    "partition": ("--partition-seed 42", drawn, sizes_of_kind("dirichlet", 42), sizes_of_kind("official", 42)),
    "partition_seed": (
        "--partition dirichlet --seed 1", drawn, sizes_of_kind("dirichlet", 1), sizes_of_kind("dirichlet", 42)
    ),
    "cohorts": (
        "--method fedavg", lambda sim: sim.schedule(0).clients.tolist(),
        schedules.cohort(Config().seed, 0, 5, 5)[0].tolist(), random.Random(Config().seed).sample(range(5), 5),
    ),
    # of 25 rows, floor(25 / 2) = 12 are shared out as 4 : 2 : 1
    "imbalance": ("--method fedavg", lambda sim: int((sim.data.scoring >= 0).sum()), 6 + 3 + 1, 2 * 4),
}  # fmt: skip
"""Difference or setting -> flags, function of a simulation, its value by default and under `--fidelity official`."""
OF_A_ROUND = ("server-stats", "untrained")


def test_every_difference_of_the_profile_has_an_effect_on_a_run():
    official = {name for name, row in presets.SWITCHES.items() if row.official}
    assert {*EFFECTS, *OF_A_ROUND} == official | presets.FIDELITY["official"].keys() - {"reference"}


@pytest.mark.parametrize(
    ("flags", "value_of", "corrected", "official"), EFFECTS.values(), ids=EFFECTS
)
def test_difference_of_the_profile_changes_what_a_run_is_made_of(
    flags, value_of, corrected, official
):
    assert corrected != official
    assert value_of(simulated("corrected", flags)) == corrected
    assert value_of(simulated("official", flags)) == official


def test_momentum_moves_running_statistics_and_untrained_clients_count_under_the_profile():
    """The statistic moves by 1 + beta of a mean m of s_k, and then by 1 + beta + beta^2 (Nesterov).

    The client without a step has a share of the mean.
    """
    made = simulated("official", "--method fedavgm", COUNTING)
    rounds = schedules.stack([made.schedule(number) for number in range(2)], tables.MAX_ROUNDS)
    state, metrics = worlds.jit(made.chunk.__wrapped__)(
        made.state, jnp.int32(2), rounds, made.data, made.hyper
    )
    schedule, beta = made.schedule(0), made.config.fedavgm.momentum
    assert (schedule.num_steps == 0).sum() == 1 and (np.asarray(metrics.weights[:2]) > 0).all()
    mean = schedule.num_samples @ schedule.num_steps / schedule.num_samples.sum()
    np.testing.assert_allclose(
        state.variables.stats["steps"], (2 + 2 * beta + beta**2) * mean, rtol=1e-5
    )
