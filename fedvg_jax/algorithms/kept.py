"""Keeps the model that every client trained last, beside the memory of any algorithm, which it does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from fedvg_jax.core.types import Algorithm, Anchor, Hyper, Tree, Variables


class WithModel(NamedTuple):
    """A client's memory under `keeping_models`."""

    memory: Tree
    """The algorithm's own."""
    kept_model: Variables
    """The model after the newest local training, without the running statistics that the server averages."""


def keeping_models(base: Algorithm) -> Algorithm:
    """Returns an algorithm with the rounds of `base` whose clients also remember their trained models."""

    def init(hyper: Hyper, params: Tree) -> tuple[Tree, Tree]:
        server, memory = base.init(hyper, params)
        return server, WithModel(memory, _variables(params))

    def report(hyper: Hyper, params: Tree, anchor: Anchor, displacement: Array) -> tuple[Tree, Tree, Tree]:
        memory, *messages = base.report(hyper, params, _of_base(anchor), displacement)
        return WithModel(memory, _variables(params)), *messages

    def of_base(function: Callable[..., Any] | None) -> Any:
        return function and (lambda *arguments: function(*arguments[:-1], _of_base(arguments[-1])))

    loss, correct, personal = map(of_base, (base.loss, base.correct, base.personal))
    return base._replace(init=init, report=report, loss=loss, correct=correct, personal=personal)


def _of_base(anchor: Anchor) -> Anchor:
    return anchor._replace(client=anchor.client.memory)


def _variables(params: Tree) -> Variables:
    return params if isinstance(params, Variables) else Variables(params, {})
