"""Tasks from a user's own Linen and NNX modules, and one-line errors for modules that cannot be trained."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support import worlds
from support.files import one_line

import fedvg_jax
from fedvg_jax.core import tree
from fedvg_jax.core.types import Batch, ClientReturn, Data, UsageError, Variables
from fedvg_jax.data import user_data
from fedvg_jax.weightings import signals

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(6, 3)).astype(np.float32), RNG.normal(size=6).astype(np.float32)
BATCH, MASK = Batch(jnp.asarray(X), jnp.asarray(Y)), jnp.arange(6) < 4
WIDTH = 4


def squared(output, y):
    return (output - y) ** 2


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, mask, train):
        x = nn.Dense(WIDTH, name="first")(x)
        x = nn.BatchNorm(not train, momentum=0.9, name="norm")(x, mask=mask[:, None])
        return nn.Dense(1, name="last")(nn.relu(x))[:, 0]


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, x, mask):
        return self.last(nnx.relu(self.norm(self.first(x), mask=mask[:, None])))[:, 0]


METRICS = {"absolute": lambda output, y: abs(output - y)}
TASKS = {
    "linen": fedvg_jax.linen_task(LinenNet(), squared, X[:1], metrics=METRICS),
    "nnx": fedvg_jax.nnx_task(NnxNet, squared, X[:1], metrics=METRICS),
}
every_library = pytest.mark.parametrize("library", TASKS)


def by_hand(variables: Variables, train: bool) -> tuple[np.ndarray, dict]:
    """Outputs of the four real rows and the running statistics after them, in NumPy. Flax updates the running variance
    with the biased one."""
    params, stats = jax.tree.map(lambda a: np.asarray(a, float), variables)
    x = X[:4] @ params["first"]["kernel"] + params["first"]["bias"]
    mean, var = (x.mean(0), x.var(0)) if train else (stats["norm"]["mean"], stats["norm"]["var"])
    y = (x - mean) / np.sqrt(var + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
    updated = {name: 0.9 * stats["norm"][name] + 0.1 * new for name, new in (("mean", x.mean(0)), ("var", x.var(0)))}
    y = np.maximum(y, 0) @ params["last"]["kernel"] + params["last"]["bias"]
    return y[:, 0], {"norm": updated if train else stats["norm"]}


@pytest.mark.quick
@every_library
def test_loss_is_the_mean_over_the_real_rows(x64, library):
    task = TASKS[library]
    variables = worlds.variables(task=task)
    run = worlds.jit(lambda variables: {train: task.loss(*variables, BATCH, MASK, train) for train in (True, False)})
    with jax.numpy_dtype_promotion("standard"):  # Flax's BatchNorm promotes
        actual = run(variables)
    for train, (loss, stats) in actual.items():
        outputs, updated = by_hand(variables, train)
        np.testing.assert_allclose(loss, np.square(outputs - Y[:4]).mean(), rtol=1e-9)
        worlds.assert_close(stats, updated, 1e-9)


@every_library
def test_scoring_several_groups_at_once_equals_group_by_group_where_one_is_empty(x64, library):
    """Statistics over no row, of Flax's BatchNorm, have gradients that are NaN."""
    task, groups = TASKS[library], jnp.array([[0, 1, -1], [2, 3, 4], [-1, -1, -1], [5, -1, -1]], jnp.int32)
    variables = worlds.variables(task=task)
    data = Data(Batch(X, Y), *3 * [groups])
    client = ClientReturn(variables, jnp.int32(1), variables.params)
    measures = [signals.validation_gradient(task, True, groups_per_pass) for groups_per_pass in (1, 4)]
    with jax.numpy_dtype_promotion("standard"):  # Flax's BatchNorm promotes
        apart, together = worlds.jit(lambda r, d: [measure({}, r, d) for measure in measures])(client, data)
    worlds.assert_close(together, apart, 1e-9)


@every_library
def test_metrics_are_means_over_the_rows_of_all_batches(x64, library):
    task = TASKS[library]
    variables = worlds.variables(task=task)
    measure = worlds.jit(task.measure)
    masks = [MASK & (jnp.arange(6) < 1), MASK & (jnp.arange(6) >= 1)]
    sums = tree.add(*(measure(*variables, BATCH, mask) for mask in masks))
    errors = np.abs(by_hand(variables, False)[0] - Y[:4])
    assert task.metrics(sums) == pytest.approx({"loss": np.square(errors).mean(), "absolute": errors.mean()}, rel=1e-9)


@every_library
def test_metrics_of_half_precision_are_added_up_in_single_precision(library):
    """float16 ends at 65,504, and bfloat16 counts to 256."""
    task = TASKS[library]
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), worlds.variables(task=task))
    with jax.numpy_dtype_promotion("standard"):
        totals = jax.eval_shape(task.measure, *half, BATCH, MASK)["totals"]
    assert {total.dtype for total in totals.values()} == {jnp.dtype(jnp.float32)}


@every_library
def test_variables_are_plain_trees_with_a_block_per_top_level_module(library):
    variables = jax.eval_shape(TASKS[library].init, jax.random.key(0))
    paths = [f"{part}/{leaf}" for part in ("first", "last") for leaf in ("bias", "kernel")]
    assert tree.paths(variables.params) == [*paths, "norm/bias", "norm/scale"]
    assert tree.paths(variables.stats) == ["norm/mean", "norm/var"]
    assert {TASKS[library].block_of(path) for path in paths} == {"first", "last"}


class Modes(nn.Module):
    """Returns one of its own arguments."""

    @nn.compact
    def __call__(self, x, training, deterministic=None, use_running_average=None):
        self.param("unused", nn.initializers.zeros, (1,))
        return jnp.broadcast_to(jnp.array([training, deterministic, use_running_average]), (len(x), 3))


@pytest.mark.parametrize(("train", "expected"), [(True, [1, 0, 0]), (False, [0, 1, 1])])
def test_module_gets_the_mode_under_the_argument_names_it_has(train, expected):
    task = fedvg_jax.linen_task(Modes(), lambda modes, y: jnp.float32((modes == y).all()), X[:1])
    batch = Batch(BATCH.x, jnp.broadcast_to(jnp.array(expected, bool), (6, 3)))
    assert task.loss({"unused": jnp.zeros(1)}, {}, batch, MASK, train)[0] == 1


def test_tokens_and_labels_stay_integers():
    tokens, labels = np.array([[0, 2, 1]] * 4), np.array([1, 0, 1, 1])
    module = nn.Sequential([nn.Embed(3, 5), lambda x: x.mean(1), nn.Dense(2)])
    losses = {"accuracy": lambda logits, y: logits.argmax() == y}
    task = fedvg_jax.linen_task(module, optax.softmax_cross_entropy_with_integer_labels, tokens[:1], metrics=losses)
    arrays = user_data.as_arrays((tokens, labels))
    fedvg_jax.check_task(task, Batch(arrays.x, arrays.y))
    batch = Batch(jnp.asarray(tokens), jnp.asarray(labels))
    sums = worlds.jit(lambda key: task.measure(*task.init(key), batch, jnp.ones(4, bool)))(jax.random.key(0))
    accuracy = task.metrics(sums)["accuracy"]
    assert accuracy in (0.25, 0.75), "four equal rows with labels 1, 0, 1, 1"


# --- modules that draw random numbers


class LinenDropout(nn.Module):
    @nn.compact
    def __call__(self, x, mask, train):
        x = nn.BatchNorm(not train, name="norm")(nn.Dense(32)(x), mask=mask[:, None])
        return nn.Dense(1)(nn.Dropout(0.5, deterministic=not train)(x))[:, 0]


class NnxDropout(nnx.Module):
    def __init__(self, rngs, rate=0.5):
        self.first, self.last = nnx.Linear(3, 32, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(32, rngs=rngs), nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x, mask):
        return self.last(self.dropout(self.norm(self.first(x), mask=mask[:, None])))[:, 0]


RANDOM_TASKS = {
    "linen": fedvg_jax.linen_task(LinenDropout(), squared, X[:1]),
    "nnx": fedvg_jax.nnx_task(NnxDropout, squared, X[:1]),
}


@every_library
def test_dropout_draws_from_the_key_and_is_the_identity_without_one(library):
    task = RANDOM_TASKS[library]
    variables = worlds.jit(task.init)(jax.random.key(0))
    tasks = {"random": task}
    if library == "nnx":
        tasks["plain"] = fedvg_jax.nnx_task(lambda rngs: NnxDropout(rngs, rate=0.0), squared, X[:1])

    @worlds.jit
    def losses(keys):
        drawn = jax.vmap(lambda key: task.loss(*variables, BATCH, MASK, True, key)[0])(keys)
        return drawn, {name: other.loss(*variables, BATCH, MASK, True)[0] for name, other in tasks.items()}

    keys = jax.random.split(jax.random.key(1), 100)
    values, scored = losses(keys)
    assert len(np.unique(values)) == 100
    np.testing.assert_array_equal(values, losses(keys)[0])
    # E (y + noise - t)^2 = (y - t)^2 + var: a random loss exceeds the deterministic one on average
    assert scored["random"] < values.mean() and values.min() < scored["random"]
    assert scored.get("plain", scored["random"]) == scored["random"]


class Attention(nn.Module):
    """Draws random numbers outside nn.Dropout."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(8)(x).reshape(len(x), 4, 2)
        return nn.MultiHeadDotProductAttention(2, dropout_rate=0.5, deterministic=not train)(x)[:, 0, :1]


def test_random_layers_other_than_dropout_use_a_fixed_key_without_a_key():
    task = fedvg_jax.linen_task(Attention(), lambda output, y: (output[0] - y) ** 2, X[:1])
    variables = worlds.jit(task.init)(jax.random.key(0))
    without_key = worlds.jit(lambda: task.loss(*variables, BATCH, MASK, True)[0])
    with_key = worlds.jit(lambda key: task.loss(*variables, BATCH, MASK, True, key)[0])
    first, again = without_key(), without_key()
    assert first == again != with_key(jax.random.key(1))


class Wrapped(nn.Module):
    """Passes its arguments on."""

    @nn.compact
    def __call__(self, x, **modes):
        return LinenDropout()(x, **modes)


class Guarded(nn.Module):
    """Drops only where there is a key of its own."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(32)(x)
        return nn.Dense(1)(nn.Dropout(0.5, deterministic=False)(x) if self.has_rng("dropout") else x)[:, 0]


class IsTraining(nn.Module):
    @nn.compact
    def __call__(self, x, is_training=True):
        return nn.Dense(1)(nn.Dropout(0.5, deterministic=not is_training)(nn.Dense(32)(x)))[:, 0]


@pytest.mark.parametrize("module", [Wrapped(), Guarded(), IsTraining()], ids=lambda module: type(module).__name__)
def test_dropout_is_on_in_training_with_a_key_only(module):
    task = fedvg_jax.linen_task(module, squared, X[:1])
    variables = worlds.jit(task.init)(jax.random.key(0))
    losses = worlds.jit(lambda key: [task.loss(*variables, BATCH, MASK, True, *keys)[0] for keys in ((key,), ())])
    (first, scored), (second, again) = (losses(jax.random.key(i)) for i in range(2))
    assert len({float(first), float(second), float(scored)}) == 3 and scored == again
    evaluated = jax.make_jaxpr(lambda: task.predict(*variables, BATCH))()
    assert "random_bits" not in str(evaluated)


# --- what has no effect


class Fixed(nn.Module):
    """Its mode is a constant, whatever it is called with."""

    train: bool
    rate: float = 0.5

    @nn.compact
    def __call__(self, x, mask):
        x = nn.BatchNorm(not self.train)(nn.Dense(4)(x), mask=mask[:, None])
        return nn.Dense(1)(nn.Dropout(self.rate, deterministic=not self.train)(x))[:, 0]


class NnxFixed(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.dropout = nnx.Linear(3, 1, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x), deterministic=True)[:, 0]


cross_entropy = optax.softmax_cross_entropy_with_integer_labels
WARNED = {
    "off": (
        lambda: fedvg_jax.linen_task(Fixed(False), squared, X[:1]),
        ("Dropout that is off", "do not move in training"),
    ),
    "no Dropout": (lambda: fedvg_jax.linen_task(Fixed(False, 0.0), squared, X[:1]), ("do not move in training",)),
    "on": (lambda: fedvg_jax.linen_task(Fixed(True), squared, X[:1]), ("statistics of each batch in evaluation",)),
    "nnx": (lambda: fedvg_jax.nnx_task(NnxFixed, squared, X[:1]), ("Dropout that is off",)),
    "softmax": (
        lambda: linen(nn.Dense(3), nn.softmax, loss=cross_entropy),
        ("ends in a softmax, and loss takes logits",),
    ),
    "one-hot": (
        lambda: linen(nn.Dense(3), nn.softmax, loss=optax.softmax_cross_entropy),
        ("ends in a softmax, and loss takes logits",),
    ),
    "sigmoid": (
        lambda: linen(nn.Dense(1), nn.sigmoid, lambda x: x[:, 0], loss=optax.sigmoid_binary_cross_entropy),
        ("ends in a sigmoid, and loss takes logits",),
    ),
    "sigmoid of labels": (
        lambda: linen(nn.Dense(2), nn.sigmoid, loss=lambda p, y: optax.sigmoid_binary_cross_entropy(p, y).mean()),
        ("ends in a sigmoid, and loss takes logits",),
    ),
    "a chance": (lambda: linen(nn.Dense(1), nn.sigmoid, loss=lambda p, y: -jnp.log(jnp.where(y, p, 1 - p))[0]), ()),
    "an error": (lambda: linen(nn.Dense(1), nn.sigmoid, lambda x: x[:, 0]), ()),
    "probabilities": (lambda: linen(nn.Dense(3), nn.softmax, loss=lambda p, y: -jnp.log(p[y])), ()),
    "named": (lambda: linen(nn.Dense(3), lambda x: {"p": nn.softmax(x)}, loss=lambda o, y: -jnp.log(o["p"][y])), ()),
    "a mean": (lambda: linen(nn.Dense(3), lambda x: x.mean(1, keepdims=True), loss=cross_entropy), ()),
    "log-probabilities": (lambda: linen(nn.Dense(3), nn.log_softmax, loss=cross_entropy), ()),
}


@pytest.mark.parametrize("kind", WARNED)
def test_one_line_says_what_has_no_effect(kind, caplog):
    make, messages = WARNED[kind]
    make()
    assert len(caplog.messages) == len(messages)
    assert all(message in line for message, line in zip(messages, caplog.messages, strict=True))


def test_checks_trace_a_module_without_a_mask_once_in_each_mode():
    sizes = []
    linen(lambda x: sizes.append(len(x)) or x, nn.Dense(1), lambda x: x[:, 0])
    assert sizes == [1, 3, 3]


class Spectral(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.SpectralNorm(nn.Dense(1))(x, update_stats=train)[:, 0]


def test_statistics_of_the_parameters_need_no_mask(caplog):
    task = fedvg_jax.linen_task(Spectral(), squared, X[:1])
    variables = worlds.variables(task=task)
    (_, trained), (_, evaluated) = worlds.jit(lambda v: [task.loss(*v, BATCH, MASK, train) for train in (True, False)])(
        variables
    )
    worlds.assert_close(evaluated, variables.stats, 0)
    assert not np.array_equal(*(jax.tree.leaves(stats)[0] for stats in (trained, evaluated))) and not caplog.messages


class Constants(nnx.Module):
    """Arrays of both libraries as attributes."""

    def __init__(self, rngs):
        self.linear, self.jax, self.numpy = nnx.Linear(3, 1, rngs=rngs), jnp.arange(3.0), np.full(3, 2, np.float32)

    def __call__(self, x):
        return self.linear(x * self.jax[None] * self.numpy[None])[:, 0]


def test_arrays_that_are_attributes_of_an_nnx_module_are_constants():
    task = fedvg_jax.nnx_task(Constants, squared, X[:1])
    variables = worlds.jit(task.init)(jax.random.key(0))
    assert tree.paths(variables.params) == ["linear/bias", "linear/kernel"]
    expected = X * [0, 2, 4] @ np.asarray(variables.params["linear"]["kernel"])[:, 0]
    np.testing.assert_allclose(worlds.jit(task.predict)(*variables, BATCH), expected, rtol=1e-5)


# --- modules that cannot be a task


class Unmasked(nn.Module):
    """Gives its mask to the second of two layers."""

    @nn.compact
    def __call__(self, x, mask, train):
        x = nn.BatchNorm(not train)(x)
        return nn.BatchNorm(not train)(x, mask=mask[:, None])


class Images(nn.Module):
    """A convolution and a BatchNorm whose mask is not that of the images."""

    channels: int

    @nn.compact
    def __call__(self, x, mask, train):
        x = nn.Conv(self.channels, (3, 3))(x)
        return nn.BatchNorm(use_running_average=not train)(x, mask=mask).mean((1, 2, 3))


REFUSED = {
    r"Images failed on x \[3, 8, 8, 1\]: .* mask is of shape \[3\]; .* mask=mask\[:, None, None, None\] for images": (
        lambda: fedvg_jax.linen_task(Images(4), squared, np.zeros((1, 8, 8, 1), np.float32))
    ),

    "Unmasked has batch statistics.* give its __call__ an argument mask, bool .B., and pass it on": (
        lambda: fedvg_jax.linen_task(Unmasked(), squared, X[:1])
    ),
    "nnx_task: give a function, lambda rngs: NnxNet.*in place of a NnxNet": (
        lambda: fedvg_jax.nnx_task(NnxNet(nnx.Rngs(0)), squared, X[:1])
    ),
    "example is a dict; x is one array .B, ....: join inputs": (
        lambda: fedvg_jax.linen_task(nn.Dense(1), squared, {"a": X[:1]})
    ),
    "Sequential has batch statistics.*mask": lambda: linen(nn.Dense(3), nn.BatchNorm(use_running_average=False)),
    r"Sequential must return .* \[3, ...\].*; got \[1\]": lambda: linen(nn.Dense(1), lambda x: x.mean(0)),

}  # fmt: skip


def linen(*layers, loss=squared, **options):
    return fedvg_jax.linen_task(nn.Sequential(layers), loss, X[:1], **options)


@pytest.mark.parametrize("message", REFUSED)
def test_module_that_cannot_be_a_task_is_refused_in_one_line(message):
    with one_line(message):
        REFUSED[message]()


# --- errors of a user's module or loss

EXAMPLE = np.zeros((1, 4), np.float32)


class Column(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x)[:, 0]


def made(module=None, loss=squared, example=EXAMPLE, x=EXAMPLE):
    """Traces the loss of a task on x."""
    task = fedvg_jax.linen_task(module or Column(), loss, example)
    batch = Batch(jnp.asarray(x), jnp.zeros(len(x)))
    variables = jax.eval_shape(task.init, jax.random.key(0))
    return jax.eval_shape(lambda v: task.loss(*v, batch, jnp.ones(len(x), bool), True)[0], variables)


MISTAKES = {
    "a class": ({"module": Column}, "linen_task: give an instance, Column(), in place of the class Column"),
    "no leading axis": ({"example": EXAMPLE[0]}, "an example needs a leading axis, as x[:1]"),
    "another width": ({"x": EXAMPLE[:, :3]}, "data x has rows [3]; the task's example had [4]; make the task with"),
    "a loss of batches": (
        {"loss": lambda output, y: jnp.mean((output - y) ** 2, axis=1)},
        "loss, which is called with one example (output [], y []), failed: ",
    ),
    "a loss of one argument": ({"loss": lambda output: output}, "loss takes (output); it is called with (output, y)"),
    "a loss of integers": ({"loss": lambda output, y: 1}, "loss of one example must be a float, which has a gradient"),
    "a loss of shape [1]": ({"module": nn.Dense(1)}, "loss of one example must be a scalar, shape []; got [1] from an"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_of_a_module_or_loss_is_one_line(mistake):
    arguments, message = MISTAKES[mistake]
    with pytest.raises(UsageError) as error:  # jax adds notes
        made(**arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
