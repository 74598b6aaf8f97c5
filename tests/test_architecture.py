"""Packages import in one direction, without circles, and no library that is not used; a line has one thought."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedvg_jax as fv
from fedvg_jax import algorithms
from fedvg_jax.config import checks
from fedvg_jax.resolve import method, model

PACKAGE = Path(__file__).parent.parent / "fedvg_jax"
ORDER = (
    "host", "core", "data", "models", "algorithms", "compression", "weightings", "engine", "config", "runs",
    "resolve", "views", "study", "integrations",
)  # fmt: skip
"""A package imports itself and packages before it; the modules of the root, commands and public API, import any."""


@functools.cache
def sources() -> dict[str, ast.Module]:
    """Module by its path in the package, e.g. core/tree."""
    paths = {
        path.relative_to(PACKAGE).with_suffix("").as_posix(): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    return {
        name.removesuffix("/__init__"): ast.parse(path.read_text("utf-8"))
        for name, path in paths.items()
    }


@functools.cache
def imports(module: str) -> tuple[str, ...]:
    """Dotted names that a module imports, anywhere in its file."""
    names, unread = [], [sources()[module]]
    while unread:
        node = unread.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        unread += ast.iter_child_nodes(node)
    return tuple(names)


def imported_modules(module: str) -> set[str]:
    """Modules of the package that a module imports, for types too."""
    modules = set()
    for name in imports(module):
        path = name.replace(".", "/").removeprefix("fedvg_jax/")
        if name.startswith("fedvg_jax."):
            modules.add(path if path in sources() else path.rpartition("/")[0])
    return modules - {module}


def package_of(module: str) -> str:
    return module.partition("/")[0]


def test_packages_import_only_packages_before_them():
    for module in sources():
        assert not any(name.startswith("benchmarks") for name in imports(module)), module
        if package_of(module) in ORDER:
            for other in imported_modules(module):
                assert package_of(other) in ORDER, (
                    f"{module} imports {other}, which is above all packages"
                )
                assert ORDER.index(package_of(other)) <= ORDER.index(package_of(module)), (
                    f"{module} imports {other}"
                )
        else:
            assert not any(
                package_of(other) == "integrations" for other in imported_modules(module)
            ), module


def test_no_modules_import_each_other_in_a_circle():
    done: set[str] = set()
    while len(done) < len(sources()):
        free = {
            m
            for m in sources()
            if m not in done and imported_modules(m) - {"fedvg_jax", "__init__", ""} <= done
        }
        assert free, f"circle among {sorted(set(sources()) - done)}"
        done |= free


UNUSED = {
    "fedvg_jax, fedvg_jax.data": "jax flax torch flwr fedvg_jax.integrations",
    "fedvg_jax.config, fedvg_jax.runs.record.history": "torch flwr flax.nnx fedvg_jax.integrations",
    "fedvg_jax.sim, fedvg_jax.runs.loop, fedvg_jax.views.display": (
        "fedvg_jax.study chex orbax tensorstore sklearn scipy pandas matplotlib torch flwr flax.nnx"
    ),
}
"""The package with its data and histories, and a start of the command line -> libraries that they do not use."""


@pytest.mark.parametrize("modules", UNUSED)
def test_an_import_loads_no_library_that_is_not_used(modules):
    code = f"import sys, {modules}; sys.exit(', '.join({set(UNUSED[modules].split())} & sys.modules.keys()) or None)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert not done.stderr and not done.returncode, done.stderr


def test_in_runs_only_the_module_that_writes_settings_down_knows_them():
    in_runs = [module for module in sources() if module.startswith("runs/")]
    knowing = [module for module in in_runs if ".config" in " ".join(imports(module))]
    assert knowing == ["runs/record/folder"]


def test_behind_the_resolution_nothing_takes_settings():
    """A run reads no value of them, except where they are written down; views take simulations."""
    reads = [
        (module, ast.unparse(node))
        for module, tree in sources().items()
        if package_of(module) == "runs" and module != "runs/record/folder"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.fullmatch(r"(?!jax\.)(.+\.)?(config|settings)", ast.unparse(node.value))
    ]
    assert not reads
    views = [module for module in sources() if package_of(module) == "views"]
    assert not [module for module in views if "fedvg_jax.config.Config" in imports(module)]


ALGORITHMS = {*algorithms.BY_NAME} - {"fedavg"}
"""Names; fedavg is the method that a report compares others with."""

TABLES_OF_PAPERS = ("config/presets", "config/methods", "algorithms")
"""Where names of algorithms stand beside their own files."""


def test_the_name_of_an_algorithm_stands_in_its_file_the_registry_and_tables():
    elsewhere = [
        (module, node.value)
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and node.value in ALGORITHMS
        and module not in TABLES_OF_PAPERS
        and not module.startswith("algorithms/")
    ]
    assert not elsewhere


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nested(tree: ast.AST, kinds: type | tuple[type, ...]) -> list[int]:
    """Returns the lines of the expressions of some kinds that hold another one."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            inner = [part for part in ast.walk(node) if isinstance(part, kinds)]
            if len(inner) > 1:
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("kinds", [ast.IfExp, COMPREHENSIONS], ids=["conditions", "comprehensions"])
def test_no_conditional_expression_or_comprehension_holds_another(kinds):
    """Functions have names for what is between; a lambda counts as a part of the expression that it stands in."""
    root, finds = PACKAGE.parent, []
    for folder in ("fedvg_jax", "benchmarks", "tests", "examples", "docs"):
        for path in sorted((root / folder).rglob("*.py")):
            lines = nested(ast.parse(path.read_text("utf-8")), kinds)
            finds += [f"{path.relative_to(root)}:{line}" for line in lines]
    assert not finds


def test_settings_are_checked_and_resolved_once_for_a_run():
    """Counted by a profiler, with a text and with an object of the package."""
    functions = (checks.check, method.make_method, method.make_hyper, model.make_local)
    names = {function.__code__: function.__name__ for function in functions}
    called = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code in names:
            called.append(names[frame.f_code])

    settings = fv.Config(rounds=1, clients=4, model="linear")
    for objects in ({}, {"algorithm": fv.algorithms.scaffold()}):
        sys.setprofile(note)
        try:
            fv.run(settings, **objects)
        finally:
            sys.setprofile(None)
        assert sorted(called) == sorted(names.values())
        called.clear()
