"""Small federations for tests: a network of 44 parameters on ragged clients, and quadratics."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedvg_jax import config, resolve
from fedvg_jax.config.options import algorithm_of
from fedvg_jax.core import tree, types
from fedvg_jax.engine import executors, federated_round, local_training, schedule
from fedvg_jax.models import task as tasks
from fedvg_jax.models.layers import BatchNorm, dense
from fedvg_jax.weightings import aggregation
from support import oracle, xla_flags

IMAGE, HIDDEN, CLASSES = (1, 2, 3), 5, 3


class Net(nn.Module):
    """Dense 6 -> 5, BatchNorm, ReLU, dense 5 -> 3: the network of the oracle."""

    @nn.compact
    def __call__(self, x, mask, train: bool):
        x = dense(x.reshape(x.shape[0], -1), HIDDEN, "fc1")
        x = nn.relu(BatchNorm(name="bn1")(x, mask, train))
        return dense(x, CLASSES, "classifier")


TASK = tasks.classification(Net(), CLASSES, IMAGE)


class World(NamedTuple):
    """The data and settings of a federation, in NumPy."""

    pool: types.Tree
    train: Sequence[np.ndarray]
    """Rows of every client."""
    scoring: np.ndarray
    """Table of D_val that FedVG scores with."""
    test: np.ndarray
    """Rows, not a table."""
    batch_size: int
    cohort_size: int
    local_epochs: int
    val: np.ndarray | None = None
    """Rows of D_val in evaluation mode; None for those of `scoring`."""

    def schedule(
        self, number: int, num_lanes: int = 1, seed: int = 0, capacity: int = 64, **changes
    ) -> types.Schedule:
        epochs = (self.local_epochs, self.local_epochs)
        settings = {"seed": seed, "cohort_size": self.cohort_size, "local_epochs": epochs}
        settings |= {"batch_size": self.batch_size, "num_lanes": num_lanes}
        drawn = schedule.make(number, self.train, **settings | changes)
        return schedule.padded(drawn, capacity)

    def most_steps(self) -> int:
        """Returns an upper bound on the local steps of a client."""
        return self.local_epochs * -(-max(map(len, self.train)) // self.batch_size)

    def data(self) -> types.Data:
        rows = self.scoring[self.scoring >= 0] if self.val is None else self.val
        val = schedule.table(rows, 3, self.scoring.size // 3 + 1)
        tables = (jnp.asarray(table) for table in (self.scoring, val, self.test[:, None]))
        return types.Data(jax.tree.map(jnp.asarray, self.pool), *tables, described=self.described())

    def described(self) -> types.Described:
        """Returns the label counts for algorithm and weighting."""
        return types.Described(*2 * [jnp.asarray(self.label_counts())])

    def label_counts(self) -> np.ndarray:
        """Returns every client's label counts, int32 [N, C]; rows without classes count as two classes in turn."""
        labels = self.pool.y if isinstance(self.pool, types.Batch) else np.arange(64) % 2
        size = labels.max() + 1
        counts = [np.bincount(labels[rows].ravel(), minlength=size) for rows in self.train]
        return np.stack(counts).astype(np.int32)


def world(
    sizes: Sequence[int], *, batch_size: int, cohort_size: int, local_epochs: int, seed: int = 0
) -> World:
    """Returns clients of the given sizes. D_val is 10 rows, so its last batch of 4 is partial; its table also has an
    empty batch. In evaluation mode it has a row more, as where scoring leaves out a last batch of a single row."""
    rng = np.random.default_rng(seed)
    val, test = 10, 13
    size = sum(sizes) + val + test
    pool = types.Batch(
        rng.integers(0, 256, (size, *IMAGE), np.uint8), rng.integers(0, CLASSES, size, np.int32)
    )
    parts = np.split(rng.permutation(size).astype(np.int32), np.cumsum([*sizes, val]))
    scoring = schedule.table(parts[-2], batch_size, -(-val // batch_size) + 1)
    evaluated = np.append(parts[-2], parts[-1][0])
    return World(
        pool, parts[:-2], scoring, parts[-1], batch_size, cohort_size, local_epochs, evaluated
    )


def small() -> World:
    """Seven clients, five a round: several batches, one row (skipped), a last batch of one row (skipped), none."""
    return world([11, 1, 5, 0, 2, 8, 3], batch_size=4, cohort_size=5, local_epochs=2)


def plan_with_dropouts(
    world: World, rounds: int = 3, num_lanes: int = 2, **changes
) -> list[types.Schedule]:
    """Returns schedules with a probe; in the second round, two of the five clients drop out."""
    plan = [
        world.schedule(number, num_lanes, **{"probe_ratio": 0.5} | changes)
        for number in range(rounds)
    ]
    participating = np.array([True, False, True, True, False])
    return [
        schedule._replace(participating=participating) if number == 1 else schedule
        for number, schedule in enumerate(plan)
    ]


def ragged() -> World:
    """Clients of 1 to 200 rows, all in every round."""
    return world(
        [7, 1, 200, 2, 64, 33, 120, 1, 17, 5], batch_size=16, cohort_size=10, local_epochs=1
    )


def variables(seed: int = 0, task: types.Task = TASK) -> types.Variables:
    """Returns the network's arrays, none at a special value, in the current precision."""
    return jax.tree.map(lambda x: jnp.asarray(x, float), _moved_variables(seed, task.init))


@functools.cache
def _moved_variables(seed: int, init) -> types.Variables:
    with jax.enable_x64(False):
        start = jax.tree.map(np.asarray, jit(init)(jax.random.key(seed)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + rng.uniform(0, 0.3, x.shape), start)


def random_variables(task: types.Task) -> types.Variables:
    """Returns random arrays of a model's shapes in the current precision, with positive scales and variances; nothing
    is compiled."""
    rng = np.random.default_rng(1)
    with jax.enable_x64(False):
        shapes = jax.eval_shape(task.init, jax.random.key(0))

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return 1 + rng.uniform(0, 0.3, shape)
        # of its inputs, so that activations stay near 1
        return rng.normal(size=shape) * math.prod(shape[:-1]) ** -0.5

    leaves, structure = jax.tree.flatten(shapes)
    return structure.unflatten([jnp.asarray(draw(leaf.shape), float) for leaf in leaves])


def state(
    world: World,
    algorithm: types.Algorithm,
    task: types.Task = TASK,
    stats_too: bool = False,
    **changes: float,
) -> types.SimState:
    """Returns the state before the first round, from `variables`; `changes` are hyperparameters."""
    arguments = task, algorithm, len(world.train), hyper(**changes)
    return federated_round.init_state(
        *arguments, variables=variables(task=task), stats_too=stats_too
    )


HYPER = {
    "lr": 0.3, "fedvg.eps": 1e-3, "fedopt.lr": 0.7, "fedopt.b1": 0.9, "fedopt.b2": 0.99, "fedopt.eps": 1e-3,
    "fedavgm.lr": 0.7, "fedavgm.momentum": 0.8, "fedprox.mu": 0.2, "scaffold.eta_g": 0.6, "feddyn.alpha": 0.3,
    "feddyn.clip": 1.2, "elastic.mu": 0.7, "moon.mu": 1.5, "moon.tau": 0.4, "fedntd.beta": 0.8, "fedntd.tau": 1.7,
    "feddecorr.beta": 2.5, "ditto.lam": 0.6, "fedlc.tau": 1.3,
}  # fmt: skip
"""Every value has an effect on its algorithm."""


def hyper(**changes: float) -> types.Hyper:
    """Returns the values of `make_hyper`, with those of HYPER and `changes`, in the current precision."""
    defaults = resolve.method.scalars(config.Config())
    assert (HYPER | changes).keys() <= defaults.keys()
    return {name: jnp.asarray(value, float) for name, value in (defaults | HYPER | changes).items()}


@functools.cache
def algorithm(name: str, **settings) -> types.Algorithm:
    """Returns a registered algorithm; `settings` are the config's."""
    return algorithm_of(replace(config.Config(), algorithm=name, **settings))


ON_QUADRATICS = [
    n for n in config.ALGORITHMS if algorithm(n).loss is None and algorithm(n).personal is None
]
"""The algorithms that need no outputs or features of a network, and have no personal models."""


@functools.cache
def full_algorithm() -> types.Algorithm:
    """Returns Scaffold with Elastic's probe and FedNova's messages, and the sum of their residuals."""
    scaffold, elastic, nova = map(algorithm, ("scaffold", "elastic", "fednova"))

    def report(*arguments):
        return (*scaffold.report(*arguments)[:2], nova.report(*arguments)[2])

    def residual(hyper, server, params, cohort):
        added, after = scaffold.residual(hyper, server, params, cohort)
        for other in (elastic, nova):
            added = tree.add(added, other.residual(hyper, (), params, cohort)[0])
        return added, after

    declared = scaffold.hyperparameters + elastic.hyperparameters
    return scaffold._replace(
        report=report,
        residual=residual,
        probe=elastic.probe,
        probe_ratio=elastic.probe_ratio,
        hyperparameters=declared,
    )


# --- compiled cheaply


def supported(*options: dict) -> dict:
    """Returns the first compiler options that this XLA accepts."""
    for chosen in options:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda: 1, compiler_options=chosen).lower().compile()
            return chosen
    return {}


HASTE = supported(xla_flags.CHEAP | xla_flags.PLAIN_KERNELS, xla_flags.CHEAP)
"""Compiler options for programs that run once."""

jit = functools.partial(jax.jit, compiler_options=HASTE)
"""`jax.jit` with these options."""


TWO_LANES = executors.lanes(2)


def looped(make_client, shared: types.Tree, schedule: types.Schedule) -> types.Tree:
    """Trains clients as an executor does, in Python loops over clients and compiled steps."""
    client, trained = make_client(shared, schedule), []
    init, step = jit(client.init), jit(client.step)
    for k, num_steps in enumerate(np.asarray(schedule.num_steps)):
        carry = init(np.int32(k))
        for t in range(num_steps):
            carry = step(carry, np.int32(k), np.int32(schedule.start[k] + t))
        trained.append(carry)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trained)


# --- quadratics: neither images nor classes


def _loss(params, stats, batch, mask, train):
    a, b = batch
    rows = jax.tree.map(lambda x, a, b: (a * x[None] ** 2 / 2 - b * x[None]).sum(1), params, a, b)
    total = jnp.where(mask, sum(jax.tree.leaves(rows)), 0).sum()
    return total / jnp.maximum(mask.sum(), 1).astype(total.dtype), stats


def _measure(params, stats, batch, mask):
    loss, _ = _loss(params, stats, batch, mask, False)
    return {"loss": loss * mask.sum().astype(loss.dtype), "rows": mask.sum()}


QUADRATIC = types.Task(
    init=lambda key: types.Variables(
        {"left": {"x": jnp.ones(2)}, "right": {"x": jnp.full(1, 2.0)}}, {}
    ),
    loss=_loss,
    predict=lambda params, stats, batch: jnp.concatenate(
        jax.tree.leaves(jax.tree.map(lambda x, a, b: a * x[None] - b, params, *batch)), 1
    ),
    measure=_measure,
    metrics=lambda sums: {"loss": float(sums["loss"] / sums["rows"]), "accuracy": 0.0},
    block_of=lambda path: path.split("/")[0],
)
"""Rows (a, b) have the loss sum (a x^2 / 2 - b x) over three numbers x in two tensors."""


def _loss_with_a_statistic(params, stats, batch, mask, train):
    value, _ = _loss(params, {}, batch, mask, train)
    return value, jax.tree.map(
        lambda s: s + 0.1 * (batch[0]["left"]["x"][0] - s) if train else s, stats
    )


STATISTIC = QUADRATIC._replace(
    init=lambda key: QUADRATIC.init(key)._replace(stats={"mean": jnp.ones(2)}),
    loss=_loss_with_a_statistic,
)
"""The quadratics with a running mean of `a`."""


def quadratics(a, b, sizes: Sequence[int], cohort_size: int) -> World:
    """Returns clients with own `a`, `b` [N, 3], who hold `sizes` equal rows in minibatches of 2. D_val, which is also
    the test set, is two further rows with a = b = 1. The pool is padded to 32 rows, so that many worlds are data of one
    program."""
    owner = np.repeat(np.arange(len(sizes) + 1), [*sizes, 2])
    known = [
        np.concatenate([np.broadcast_to(x, (len(sizes), 3)), np.ones((1, 3))])[owner]
        for x in (a, b)
    ]
    known = [np.concatenate([x, np.zeros((max(0, 32 - len(x)), 3))]) for x in known]
    pool = tuple({"left": {"x": x[:, :2].copy()}, "right": {"x": x[:, 2:].copy()}} for x in known)
    *train, val = np.split(np.arange(len(owner), dtype=np.int32), np.cumsum(sizes))
    return World(pool, train, schedule.table(val, 2, 2), val, 2, cohort_size, 1)


def uneven(cohort_size: int = 3, seed: int = 0) -> World:
    """Returns five quadratics with 1 to 4 steps a round."""
    rng = np.random.default_rng(seed)
    return quadratics(
        rng.uniform(0.5, 2, (5, 3)), rng.normal(size=(5, 3)), [4, 8, 2, 6, 3], cohort_size
    )


def any_of(weightings: Sequence[types.Weighting]) -> types.Weighting:
    """Returns a weighting that uses the rule with number `hyper["rule"]`: one program for all rules."""

    def weigh(hyper, measured, view):
        by_rule = [rule.weigh(hyper, m, view) for rule, m in zip(weightings, measured, strict=True)]
        return jax.tree.map(lambda *weights: jnp.stack(weights)[hyper.get("rule", 0)], *by_rule)

    def scores(measured):
        return {
            str(i): rule.score(m)
            for i, (rule, m) in enumerate(zip(weightings, measured, strict=True))
        }

    def signal(*client):
        return [rule.signal(*client) for rule in weightings]

    def picked(number, term):
        def own(f):
            return lambda hyper, measured, view: f(hyper, measured[number], view)

        def share(hyper, measured, view):
            chosen = jnp.asarray(hyper.get("rule", 0) == number)
            return jax.tree.map(
                lambda c: chosen.astype(c.dtype) * c, own(term.share)(hyper, measured, view)
            )

        return aggregation.Term(own(term.weigh), share)

    streams = all(rule.terms for rule in weightings)
    terms = (
        tuple(picked(i, term) for i, rule in enumerate(weightings) for term in rule.terms)
        if streams
        else ()
    )
    return types.Weighting(
        signal, weigh, score=lambda measured: scores(measured)["0"], detail=scores, terms=terms
    )


@functools.cache
def weighting(
    name: str,
    algorithm: types.Algorithm,
    task: types.Task = QUADRATIC,
    batch_size: int = 2,
    **settings,
) -> types.Weighting:
    """Returns a named weighting; `settings` are FedVG's."""
    settings = replace(
        config.Config(), weighting=name, batch_size=batch_size, fedvg=dict(**settings)
    )
    return resolve.method.make_weighting(settings, task, algorithm)


def make_round(
    world: World, algorithm: types.Algorithm, rule: types.Weighting | str = "native", task: types.Task = QUADRATIC,
    optimiser: local_training.Optimiser = local_training.sgd, executor: types.Executor = TWO_LANES, **options,
):  # fmt: skip
    """Returns the jitted round of an algorithm and weighting; equal arguments share one program across tests."""
    if isinstance(rule, str):
        rule = weighting(rule, algorithm, task, world.batch_size)
    return _program(task, algorithm, rule, executor, optimiser, len(world.train), **options)


def round_step(*args, **options):
    """Returns `make_round` without jit."""
    return make_round(*args, **options).__wrapped__


@functools.cache
def _program(*args, **options):
    return jit(federated_round.make_round(*args, **options))


def play(
    world: World, plan: Sequence[types.Schedule], algorithm: types.Algorithm, rule: types.Weighting | str = "samples",
    task: types.Task = QUADRATIC, values: types.Hyper | None = None, **options,
) -> list[tuple[types.SimState, types.Metrics]]:  # fmt: skip
    """Returns state and metrics after every round of a plan; `options` are those of `make_round`."""
    step, values = make_round(world, algorithm, rule, task, **options), values or hyper()
    start = {name: value for name, value in options.items() if name in ("stats_too", "local")}
    arguments = task, algorithm, len(world.train), values
    state, results = (
        federated_round.init_state(*arguments, variables=variables(task=task), **start),
        [],
    )
    for planned in plan:
        state, metrics = step(state, planned, world.data(), values)
        results.append((state, metrics))
    return results


# --- data of runs


def random_images() -> tuple[np.ndarray, np.ndarray]:
    """Returns 200 images for `TASK`, with labels that do not depend on them."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (200, *IMAGE), np.uint8), rng.integers(0, CLASSES, 200, np.int32)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns images of four pixels in three classes, none white: a run on them compiles in little time."""
    return np.random.default_rng(0).integers(0, 255, (count, 2, 2, 1), np.uint8), np.arange(
        count
    ) % 3


# --- one program for the rules of an algorithm

RULES = ("samples", "uniform", "samples+fedvg")


def with_momentum(hyper, round):
    """Plain SGD where the hyperparameter is 0, as by default."""
    return optax.sgd(hyper["lr"], hyper["momentum"])


@functools.cache
def any_rule(algorithm: types.Algorithm) -> types.Weighting:
    """Returns the rule of RULES that `rule` chooses."""
    return any_of([weighting(rule, algorithm) for rule in RULES])


def shared_round(algorithm: types.Algorithm, **options):
    """Returns the jitted round of three of five quadratics under any of RULES, with kept momentum. Rounds in double
    precision of all worlds from `quadratics` and `uneven` with these numbers of clients share one program."""
    return make_round(uneven(), algorithm, any_rule(algorithm), optimiser=with_momentum, **options)


def shared_state(
    world: World, algorithm: types.Algorithm, stats_too: bool = False, **changes: float
) -> types.SimState:
    """Returns the state before the first `shared_round`."""
    return state(world, algorithm, QUADRATIC, stats_too, **changes)


def by_rule(name: str, **changes: float) -> types.Hyper:
    """Returns hyperparameters that choose a rule of RULES."""
    return hyper(**changes) | {"rule": jnp.int32(RULES.index(name))}


def rounds_of_oracle(
    world: World, plan: Sequence[types.Schedule], algorithm: oracle.Algorithm, rule: str = "samples",
    scoring: oracle.Scoring = oracle.Scoring(), task: types.Task = TASK,  # noqa: B008
) -> Iterator[tuple[oracle.State, oracle.Metrics]]:  # fmt: skip
    """Yields the oracle's state and metrics after every round of a plan, from `variables` with `hyper()`."""
    values = {name: float(value) for name, value in hyper().items()}
    state = oracle.init(
        algorithm, values, *map(by_path, variables(task=task)), world.label_counts()
    )
    for planned in plan:
        state, metrics = oracle.round_step(
            state, planned, world.pool, world.scoring, values, algorithm, rule, scoring
        )
        yield state, metrics


def by_path(variables_part) -> dict[str, np.ndarray]:
    """Returns a tree as the oracle takes it, path -> float64."""
    return {path: np.asarray(x, float) for path, x in tree.by_path(variables_part).items()}


def assert_close(actual, expected, tolerance: float) -> None:
    """Asserts equality up to `tolerance` of max(1, |expected|), entry by entry; failures name the leaf."""
    chex.assert_trees_all_close(actual, expected, rtol=tolerance, atol=tolerance)
