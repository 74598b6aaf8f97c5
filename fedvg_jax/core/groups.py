"""Which tensors share an aggregation weight: variables -> a group number in every leaf, -1 for uniform weights; and
which tensors count as one layer in a group's mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from fedvg_jax.core import tree
from fedvg_jax.core.types import Tree, Variables


def modelwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group: a client has one weight, which its running statistics take too."""
    return jax.tree.map(lambda _: 0, variables)


def layerwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group per trained tensor. Running statistics have no gradient, hence no group."""
    return _one_per(variables, lambda path: path)


def modulewise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group per module, kernel and bias together. Running statistics have no gradient, hence no group."""
    return _one_per(variables, module_of)


def blockwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group per block of the model; running statistics follow the block they sit in."""
    number: dict[str, int] = {}
    for path in tree.paths(variables.params):
        number.setdefault(block_of(path), len(number))

    def ids(part):
        found = [number.get(block_of(path), -1) for path in tree.paths(part)]
        return jax.tree.structure(part).unflatten(found)

    return Variables(ids(variables.params), ids(variables.stats))


BY_NAME = {"modelwise": modelwise, "layerwise": layerwise, "blockwise": blockwise}


class Layer(NamedTuple):
    """Tensors that count as one in a group's mean."""

    name: str
    tensors: tuple[str, ...]
    """their paths, "a/b/kernel" """
    factor: float = 1.0
    """of its norm, before the mean"""


def layers(
    params: Tree,
    counts: Callable[[str], bool] = lambda path: True,
    name_of: Callable[[str], str] = lambda path: path,
    factor: Callable[[int], float] = lambda size: 1.0,
) -> tuple[Layer, ...]:
    """The layers of a model.

    Args:
        params: arrays, or their shapes.
        counts: which tensors do, by path.
        name_of: path -> layer; by default every tensor is one, `module_of` puts weight and bias together.
        factor: entries of a layer -> factor of its norm.

    >>> layers({"fc": {"bias": jax.numpy.ones(2), "kernel": jax.numpy.ones((3, 2))}}, name_of=module_of)
    (Layer(name='fc', tensors=('fc/bias', 'fc/kernel'), factor=1.0),)
    """
    sizes = {path: leaf.size for path, leaf in zip(tree.paths(params), jax.tree.leaves(params), strict=True)}
    members: dict[str, list[str]] = {}
    for path in filter(counts, sizes):
        members.setdefault(name_of(path), []).append(path)
    return tuple(Layer(name, tuple(paths), factor(sum(sizes[p] for p in paths))) for name, paths in members.items())


def members(measured: Sequence[tuple[Layer, Tree]], by_group: Variables) -> dict[int, list[tuple[Layer, Tree]]]:
    """The layers of every group, each with what was measured of it."""
    group_of = dict(zip(tree.paths(by_group.params), jax.tree.leaves(by_group.params), strict=True))
    found: dict[int, list[tuple[Layer, Tree]]] = {}
    for layer, norm in measured:
        found.setdefault(group_of[layer.tensors[0]], []).append((layer, norm))
    return found


def module_of(path: str) -> str:
    """The module of a tensor, "a/b/kernel" -> "a/b"; a tensor that is in none is one of its own."""
    return path.rpartition("/")[0] or path


def _one_per(variables: Variables, name_of: Callable[[str], str]) -> Variables:
    return blockwise(variables, name_of)._replace(stats=jax.tree.map(lambda _: -1, variables.stats))
