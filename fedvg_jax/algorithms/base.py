"""What an algorithm does where it does nothing: no memory, the gradient as it is, no message, no probe, R = 0."""

from __future__ import annotations

from fedvg_jax.core import tree
from fedvg_jax.core.types import Anchor, Cohort, Hyper, Probe, Tree


def no_memory(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Neither server nor clients remember anything."""
    return (), ()


def no_correction(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """g"""
    return grads


def no_report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """The memory as it was, and no message."""
    return anchor.client, (), ()


def no_probe(hyper: Hyper, probe: Probe) -> Tree:
    """Nothing is measured before training."""
    return ()


def no_residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """R = 0"""
    return tree.zeros_like(params), server
