"""Which tensors share an aggregation weight: variables -> a group number in every leaf, -1 for uniform weights."""

from __future__ import annotations

from collections.abc import Callable

import jax

from fedvg_jax import tree
from fedvg_jax.types import Variables


def modelwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group: a client has one weight, which its running statistics take too."""
    return jax.tree.map(lambda _: 0, variables)


def layerwise(variables: Variables, block_of: Callable[[str], str]) -> Variables:
    """One group per trained tensor. Running statistics have no gradient, hence no group."""
    leaves, treedef = jax.tree.flatten(variables.params)
    return Variables(treedef.unflatten(range(len(leaves))), jax.tree.map(lambda _: -1, variables.stats))


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
