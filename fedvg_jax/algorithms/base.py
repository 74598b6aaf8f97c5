"""The parts of an algorithm that add nothing: no memory, unchanged gradients, no message, no probe, R = 0."""

from __future__ import annotations

from fedvg_jax.core import tree
from fedvg_jax.core.types import Algorithm, Anchor, Cohort, Hyper, Probe, Tree


def no_memory(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
    """Returns empty memories of the server and of a client."""
    return (), ()


def no_correction(hyper: Hyper, grads: Tree, params: Tree, anchor: Anchor) -> Tree:
    """Returns the gradients unchanged."""
    return grads


def no_report(hyper: Hyper, params: Tree, anchor: Anchor, displacement) -> tuple[Tree, Tree, Tree]:
    """Returns the client's memory unchanged, and no messages."""
    return anchor.client, (), ()


def no_probe(hyper: Hyper, probe: Probe) -> Tree:
    """Measures nothing before training."""
    return ()


def no_residual(hyper: Hyper, server: Tree, params: Tree, cohort: Cohort) -> tuple[Tree, Tree]:
    """Returns R = 0, and the server's memory unchanged."""
    return tree.zeros_like(params), server


PLAIN = Algorithm(no_memory, no_correction, no_report, no_residual, no_probe, native_weighting="samples")
"""The algorithm that adds nothing: FedAvg. Others replace some of its parts."""
