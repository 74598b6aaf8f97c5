"""One round's weights and average for models that are arrays by name, as other frameworks exchange them.

A model is a mapping name -> NumPy array, such as the values of a PyTorch state dict. Its floating arrays are trained
tensors, which have a gradient, and running statistics, which have none. Its integer arrays, such as BatchNorm's
counters, are averaged with the clients' mean weights and rounded.

The weights and the average are computed as in `engine.federated_round`: a client with anything non-finite is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedvg_jax import algorithms
from fedvg_jax.config import SETTINGS, Config
from fedvg_jax.config.methods import weighting_names
from fedvg_jax.core import checks, groups, tree
from fedvg_jax.core.types import (
    ClientReturn,
    Data,
    Hyper,
    ServerView,
    Task,
    Tree,
    UsageError,
    Variables,
    Weighting,
)
from fedvg_jax.resolve.hyperparameters import make_hyper
from fedvg_jax.resolve.method import make_weighting
from fedvg_jax.weightings import aggregate, basic

Arrays = Mapping[str, np.ndarray]
"""A model: name -> array."""

Gradient = Callable[[dict[str, np.ndarray]], Mapping[str, Any]]
"""the floating arrays of a model -> gradient of its loss on D_val, by name of the trained tensors"""

NOT_OF_GRADIENTS = ("val_loss", "val_accuracy", "fltrust", "fitted")
"""Weightings that need the loss on D_val itself."""

NOT_USED = ("local", "fedvg.mode", "reference", "robust", "dp.clip", "attack", "tuning.steps")
"""Settings of a round that a caller might expect; the gradient decides on the mode, and `block_of` on blocks."""

_EMPTY = Data((), (), (), ())


class Client(NamedTuple):
    """What one client returns."""

    arrays: Arrays
    num_samples: int
    """n_k."""


class Weights(NamedTuple):
    """The weights of a cohort."""

    of_tensors: dict[str, np.ndarray]
    """name of a floating array -> [K]; 0 for dropped clients"""
    mean: np.ndarray
    """[K] a client's weight averaged over the trained tensors."""
    scores: np.ndarray
    """[K] the weighting's score, such as FedVG's G_k; NaN for dropped clients."""
    participating: np.ndarray
    """bool [K]; False for a client with anything non-finite, which is dropped."""


class Scheme(NamedTuple):
    """A weighting of models that are named arrays."""

    weighting: Weighting
    hyper: Hyper
    to_variables: Callable[[Arrays], Variables]
    """floating arrays by name -> variables with these arrays as leaves"""
    to_names: Callable[[Variables], dict[str, np.ndarray]]
    """leaves of variables by name; the inverse of `to_variables`"""
    measure: Callable[[Variables, Variables, int], Tree]
    """(theta_g, theta_k, n_k) -> the client's signals"""


# --- the scheme


def make_scheme(
    config: Config, gradient: Gradient, model: Arrays, block_of: Callable[[str], str] | None = None
) -> Scheme:
    """Returns the weighting of a config.

    Args:
        config: `weighting` and `fedvg` are used.
        gradient: called once here, to learn which tensors are trained.
        model: the global model.
        block_of: name of a tensor -> name of its block; by default its first component, up to the first "." or "/".

    Raises:
        UsageError: the weighting needs more than a gradient, or a gradient or an option does not fit the model.
    """
    _check_measurable(config)
    floats = _floating(model)
    trained = _trained_names(gradient, floats)
    paths = paths_of(floats)
    names = {path: name for name, path in paths.items()}

    def to_variables(arrays: Arrays) -> Variables:
        params = {paths[name]: arrays[name] for name in floats if name in trained}
        stats = {paths[name]: arrays[name] for name in floats if name not in trained}
        return Variables(params, stats)

    def to_names(variables: Variables) -> dict[str, np.ndarray]:
        return {names[path]: leaf for part in variables for path, leaf in part.items()}

    def gradient_of(hyper: Hyper, client: ClientReturn, data: Data) -> Tree:
        named = to_names(client.variables)
        gradients = gradient({name: np.array(array) for name, array in named.items()})
        like = {name: floats[name] for name in trained}
        checks.expect({**gradients}, like, "gradient", any_float=True)
        return {path: _wide(gradients[names[path]]) for path in client.variables.params}

    def shapes(key: jax.Array) -> Variables:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), to_variables(floats))

    def block(path: str) -> str:
        return groups.first_component(path) if block_of is None else block_of(names[path])

    unused: Any = None  # a weighting of callables reads only `init` and `block_of`
    task = Task(shapes, unused, unused, unused, unused, block)
    weighting = make_weighting(config, task, algorithms.fedavg(), gradient_of)
    hyper, _ = make_hyper(config, algorithms.fedavg(), weighting)

    def measure(theta: Variables, variables: Variables, num_samples: int) -> Tree:
        delta: Any = jax.tree.map(_difference, theta.params, variables.params)
        returned = ClientReturn(variables, jnp.int32(num_samples), delta)
        return weighting.signal(hyper, returned, _EMPTY)

    return Scheme(weighting, hyper, to_variables, to_names, measure)


# --- a round


def weigh(
    scheme: Scheme, model: Arrays, clients: Sequence[Client], shuffle: np.ndarray | None = None
) -> Weights:
    """Returns the weights of a cohort.

    Args:
        scheme: the weighting.
        model: the global model theta_g.
        clients: what the K clients returned.
        shuffle: int32 [K], a permutation of the cohort, for permuted weights; by default the reverse order.

    Raises:
        UsageError: a client's arrays have other names or shapes than the model.
    """
    for number, client in enumerate(clients):
        checks.expect({**client.arrays}, {**model}, f"reply {number}", any_float=True)
    theta, weighting = scheme.to_variables(model), scheme.weighting
    models = [scheme.to_variables(client.arrays) for client in clients]
    participating = np.array([_is_finite(variables) for variables in models])
    # the global model stands for a dropped one
    usable = [v if kept else theta for v, kept in zip(models, participating, strict=True)]
    counts = [client.num_samples for client in clients]
    signals = _stack([scheme.measure(theta, *one) for one in zip(usable, counts, strict=True)])
    participating &= np.asarray(tree.is_finite((signals, jnp.asarray(participating))))
    stacked = None if weighting.terms else _stack(usable)  # rules with terms read no models
    order = np.arange(len(clients), dtype=np.int32)[::-1] if shuffle is None else shuffle
    view = ServerView(theta, stacked, jnp.asarray(order), _EMPTY, jnp.asarray(participating))
    weights = weighting.weigh(scheme.hyper, signals, view)
    participating &= np.asarray(tree.is_finite((weights, jnp.asarray(participating))))
    weights = basic.renormalise_over_participating(jnp.asarray(participating), weights)
    if not participating.any():
        weights = jax.tree.map(jnp.zeros_like, weights)
    scores = np.where(participating, np.asarray(weighting.score(signals), np.float64), np.nan)
    named = {name: np.asarray(w) for name, w in scheme.to_names(weights).items()}
    mean = np.asarray(basic.mean_over_tensors(weights.params))
    return Weights(named, mean, scores, participating)


def average(model: Arrays, clients: Sequence[Arrays], weights: Weights) -> dict[str, np.ndarray]:
    """Returns theta_g - sum_k s_k (theta_g - theta_k) for every array, in the dtypes of the global model.

    Args:
        model: theta_g; the result has its order of names.
        clients: the models of the K clients; those that are dropped are not read.
        weights: of the cohort.
    """
    chosen = [clients[k] for k in np.flatnonzero(weights.participating).tolist()]
    mean = weights.mean[weights.participating].astype(np.float64)
    mean /= mean.sum()  # of float32 weights it differs from 1 by 1e-7, which large counters show
    averaged = {}
    for name, theta in model.items():
        stack = [arrays[name] for arrays in chosen]
        if name in weights.of_tensors:
            of_tensor = weights.of_tensors[name][weights.participating]
            averaged[name] = np.asarray(weighted_mean(theta, stack, of_tensor)).astype(theta.dtype)
        else:
            averaged[name] = mean_of_integers(stack, mean).astype(theta.dtype)
    return averaged


def mean_of_integers(clients: Sequence[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Returns the rounded mean of integer or boolean arrays.

    Equal values are their mean exactly; products of doubles would change integers above 2^53.

    Args:
        clients: the K clients' arrays.
        weights: float64 [K], with sum 1.

    >>> mean_of_integers([np.int64(2**60 + 1), np.int64(2**60 + 1)], np.array([0.3, 0.7])).item() - 2**60
    1
    """
    stack = np.stack(clients)
    mean = np.rint(np.tensordot(weights, stack, 1)).astype(stack.dtype)
    return np.where((stack == stack[0]).all(0), stack[0], mean)


def weighted_mean(theta: Any, clients: Sequence[Any], weights: np.ndarray) -> jax.Array:
    """Returns `aggregate` of one tensor in the tensor's precision, also double precision.

    Args:
        theta: the global tensor, of NumPy or jax.
        clients: the K clients' tensors.
        weights: [K].
    """
    with jax.enable_x64(True):
        origin = jnp.asarray(theta)
        stack = jnp.stack([jnp.asarray(client, origin.dtype) for client in clients])
        return aggregate(origin, stack, jnp.asarray(weights, tree.wide_dtype(origin)))


def _is_finite(variables: Variables) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables))


# --- checks


def _check_measurable(config: Config) -> None:
    """Raises UsageError if the config's weighting needs more than the gradient, or a setting would have no effect."""
    for name in NOT_USED:
        if SETTINGS[name].get(config) != SETTINGS[name].default:
            raise UsageError(
                f"{name} has no effect here; leave it out, and give only weighting and settings of fedvg"
            )
    for name in weighting_names(config.weighting):
        if name in NOT_OF_GRADIENTS:
            raise UsageError(
                f"weighting {name} needs more than a gradient; use fedvg, generalised or one of sizes"
            )
    if config.fedvg.signal == "fisher":
        raise UsageError("fedvg.signal fisher needs more than a gradient; use gradient or delta")


def _trained_names(gradient: Gradient, floats: Arrays) -> set[str]:
    """Returns the names of the global model's gradient."""
    gradients = gradient({name: np.array(array) for name, array in floats.items()}) or {}
    like = {name: floats[name] for name in gradients if name in floats}
    checks.expect({**gradients}, like, "gradient", any_float=True)
    if not gradients:
        raise UsageError(
            "gradient returned no array; expected name -> gradient of every trained tensor"
        )
    return set(gradients)


def paths_of(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> path, with components separated by "/" as in the models of jax.

    >>> paths_of(["layer1.weight"])
    {'layer1.weight': 'layer1/weight'}
    """
    return {name: name.replace(".", "/") for name in names}


def _floating(model: Arrays) -> dict[str, np.ndarray]:
    return {
        name: array for name, array in model.items() if jnp.issubdtype(array.dtype, jnp.floating)
    }


def _difference(origin: np.ndarray, array: np.ndarray) -> jax.Array:
    """Returns origin - array, computed in float64, which is exact for any float type."""
    return _wide(np.asarray(origin, np.float64) - np.asarray(array, np.float64))


def _wide(array: Any) -> jax.Array:
    """Returns an array in float32, because norms overflow in half precision."""
    return jnp.asarray(array, jnp.float32)


def _stack(trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)
