"""What a caller passes in place of what the config names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from fedvg_jax.core.types import Algorithm, Selection, Task, Variables, Weighting
from fedvg_jax.data.arrays import Arrays

Function = TypeVar("Function", bound=Callable[..., Any])


class Given(TypedDict, total=False):
    """The arguments of `fedvg_jax.run` that take the place of what the config names; None is as if left out."""

    data: Arrays | tuple | None
    partition: tuple | Sequence | None
    task: Task | None
    algorithm: Algorithm | None
    weighting: Weighting | Callable[[Task], Weighting] | None
    selection: Selection | None
    hyper: Mapping[str, float] | None
    initial: Variables | None


def takes_given(function: Function) -> Function:
    """Returns a function of `**given: Unpack[Given]` with these names in its signature, as `help` shows it.

    Python refuses other names with a TypeError.
    """
    signature = inspect.signature(function)
    *own, last = signature.parameters.values()
    kinds = Given.__annotations__.items()
    named = [last.replace(name=n, kind=last.KEYWORD_ONLY, default=None, annotation=kind) for n, kind in kinds]
    signature = signature.replace(parameters=[*own, *named])

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        signature.bind(*arguments, **keywords)
        return function(*arguments, **keywords)

    checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    return checked  # pyright: ignore[reportReturnType]
