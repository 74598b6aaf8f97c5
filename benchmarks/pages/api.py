"""Pages of the API reference: every public name of `fedvg_jax`, from its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from types import ModuleType

import fedvg_jax
from fedvg_jax.core import types

SECTIONS = {
    "scoring": (
        "Score, weigh, aggregate",
        "validation_gradients gradient_norms inverse_norm_weights generalised_weights aggregate",
    ),
    "runs": (
        "Whole runs",
        "run Config History final_variables best_variables evaluate simulation Simulation"
        " UsageError DivergedError StopRun run_sweep Method SweepResult Failure compare Compared",
    ),
    "rounds": (
        "Rounds and hypergradients",
        "make_round init_state describe_clients make_schedule stack_schedules max_steps sgd unrolled over_rounds"
        " hypergradient",
    ),
    "own": (
        "Your own model, data, weighting and algorithm",
        "linen_task nnx_task Arrays Hyperparameter check_task",
    ),
    "tuples": (
        "Named tuples of a round",
        "Task Algorithm Weighting WeightingState Executor Variables Batch Data Schedule SimState Selection",
    ),
}
"""page -> (title, public names); names that are not listed go to a separate page."""

SIGNALS = "fedvg_jax.weightings.signals"
OF_SIGNALS = [
    "normed",
    "validation_gradient",
    "delta",
    "fisher",
    "validation_loss",
    "validation_accuracy",
    "mean_over",
]
"""Names of a module inside a namespace that custom weightings are made of."""

WITHOUT_ARGUMENTS = {"Config": "**settings"}
"""Classes with fields that are described elsewhere."""


def sections() -> dict[str, tuple[str, list[str]]]:
    """Returns every public name that is no module, by page."""
    listed = {page: (title, names.split()) for page, (title, names) in SECTIONS.items()}
    placed = {name for _, names in listed.values() for name in names}
    others = [name for name in public_names(fedvg_jax) if name not in placed]
    return listed | ({"others": ("Other names", others)} if others else {})


def namespaces() -> list[str]:
    """Returns the public names that are modules."""
    return [name for name in fedvg_jax.__all__ if isinstance(getattr(fedvg_jax, name), ModuleType)]


def pages() -> dict[str, str]:
    """Returns name of a page -> Markdown."""
    made = {
        page: heading(title) + entries("fedvg_jax", names)
        for page, (title, names) in sections().items()
    }
    for name in namespaces():
        module = getattr(fedvg_jax, name)
        made[name] = heading(f"fedvg_jax.{name}") + entries(module.__name__, public_names(module))
    signals = f"## `{SIGNALS}`\n\n{entries(SIGNALS, OF_SIGNALS)}"
    made["parts"] = heading("Signals of a weighting") + signals
    made["contracts"] = heading("Contracts") + entries("fedvg_jax.core.types", contracts())
    return made


def index() -> str:
    """Returns every public name: names of `fv` with their docstring's first line, and the names in its namespaces."""
    parts = []
    for title, names in sections().values():
        lines = (f"- `fv.{name}`: {summary(getattr(fedvg_jax, name))}" for name in names)
        parts += [f"## {title}", "", *lines, ""]
    parts += ["## Namespaces", ""]
    for name in namespaces():
        names = (n for n in public_names(getattr(fedvg_jax, name)) if n not in fedvg_jax.__all__)
        parts.append(f"- `fv.{name}`: " + ", ".join(f"`{n}`" for n in names) + ".")
    return "\n".join(parts)


def heading(title: str) -> str:
    """Returns a page's first line."""
    return f"# {title}\n\n"


def entries(module: str, names: Iterable[str]) -> str:
    """Returns autodoc directives."""
    home = importlib.import_module(module)
    directives = (directive(module, name, getattr(home, name)) for name in names)
    return "\n".join(["```{eval-rst}", *directives, "```", ""])


def directive(module: str, name: str, thing) -> str:
    """Returns one autodoc directive, by what the name stands for. Links lead to the entry of the public name."""
    options = "   :no-index:\n" if module != "fedvg_jax" and name in fedvg_jax.__all__ else ""
    if inspect.isclass(thing):
        signature = f"({WITHOUT_ARGUMENTS[name]})" if name in WITHOUT_ARGUMENTS else ""
        options += "" if signature else "   :members:\n"
        if described := attributes(thing):
            options += f"   :exclude-members: {', '.join(described)}\n"
        return f".. autoclass:: {module}.{name}{signature}\n{options}"
    kind = "function" if callable(thing) else "data"
    return f".. auto{kind}:: {module}.{name}\n{options}"


def attributes(thing: type) -> list[str]:
    """Returns the names that a class's docstring describes: under Attributes, or under Args for a named tuple."""
    doc = inspect.getdoc(thing) or ""
    listed = doc.partition("\nAttributes:\n")[2]
    if not listed and hasattr(thing, "_fields"):
        listed = doc.partition("\nArgs:\n")[2]
    listed = listed.partition("\n\n")[0]
    return re.findall(r"^    (\w+):", listed, re.M)


def summary(thing) -> str:
    """Returns the first sentence of a docstring, as Markdown."""
    doc = inspect.getdoc(thing) or ""
    if doc == inspect.getdoc(type(thing)):
        return f"A {type(thing).__name__}: {', '.join(map(str, thing))}."
    return " ".join(doc.split("\n\n")[0].split()).replace("*", "\\*").replace("|", "\\|") or "."


def public_names(module: ModuleType) -> tuple[str, ...]:
    """Returns what a namespace promises, except modules: `__all__`, or else the names that a package imports."""
    imported = sorted(name for name in vars(module) if not name.startswith("_"))
    names = getattr(module, "__all__", imported)
    return tuple(name for name in names if not isinstance(getattr(module, name), ModuleType))


def contracts() -> tuple[str, ...]:
    """Returns the named tuples of `core.types` that are no public names themselves."""
    classes = inspect.getmembers_static(types, inspect.isclass)
    return tuple(
        name
        for name, thing in classes
        if thing.__module__ == types.__name__ and name not in fedvg_jax.__all__
    )
