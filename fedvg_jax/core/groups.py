"""Groups of tensors that share an aggregation weight, and layers of tensors that count as one in a group's mean.

A grouping maps variables to a group number in every leaf; -1 stands for uniform weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedvg_jax.core import checks, tree
from fedvg_jax.core.types import Grouping, Tree, Variables


def modelwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """Returns one group of all tensors and running statistics: a client has one weight."""
    return jax.tree.map(lambda _: 0, variables)


def layerwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """Returns one group per trained tensor. Running statistics have no gradient, hence no group."""
    return _one_per(variables, lambda path: path)


def modulewise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """Returns one group per module, e.g. kernel and bias. Running statistics have no gradient, hence no group."""
    return _one_per(variables, module_of)


def blockwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """Returns one group per network block, which includes the running statistics in it."""
    number: dict[str, int] = {}
    with checks.calling("block_of, which takes the path of a tensor and returns a name,"):
        for path in tree.paths(variables.params):
            number.setdefault(block_of(path), len(number))

    def ids(part):
        numbers = [number.get(block_of(path), -1) for path in tree.paths(part)]
        return jax.tree.structure(part).unflatten(numbers)

    return Variables(ids(variables.params), ids(variables.stats))


BY_NAME: dict[str, Grouping] = {
    "modelwise": modelwise,
    "layerwise": layerwise,
    "blockwise": blockwise,
}


class Layer(NamedTuple):
    """Tensors that count as one in the mean over a group."""

    name: str
    tensors: tuple[str, ...]
    """Their paths, e.g. "a/b/kernel"."""


def first_component(path: str) -> str:
    """Returns the default block of a tensor: "a/b/kernel" -> "a"."""
    return path.partition("/")[0]


def layers(
    params: Tree,
    counts: Callable[[str], bool] = lambda path: True,
    name_of: Callable[[str], str] = lambda path: path,
) -> tuple[Layer, ...]:
    """Returns the layers of a model.

    Args:
        params: arrays, or their shapes.
        counts: path -> whether the tensor belongs to any layer.
        name_of: path -> name of its layer; by default every tensor is a layer. `module_of` joins weight and bias.

    >>> layers({"fc": {"bias": jax.numpy.ones(2), "kernel": jax.numpy.ones((3, 2))}}, name_of=module_of)
    (Layer(name='fc', tensors=('fc/bias', 'fc/kernel')),)
    """
    members: dict[str, list[str]] = {}
    for path in filter(counts, tree.paths(params)):
        members.setdefault(name_of(path), []).append(path)
    return tuple(Layer(name, tuple(paths)) for name, paths in members.items())


def module_of(path: str) -> str:
    """Returns the module of a tensor, "a/b/kernel" -> "a/b"; a tensor outside any module is its own group.

    >>> module_of("a/b/kernel"), module_of("scale")
    ('a/b', 'scale')
    """
    return path.rpartition("/")[0] or path


def _one_per(variables: Variables, name_of: Callable[[str], str]) -> Variables:
    """Returns one group per name of the trained tensors, and none for running statistics."""
    return blockwise(variables, name_of)._replace(stats=jax.tree.map(lambda _: -1, variables.stats))
