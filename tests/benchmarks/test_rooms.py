"""Rooms of the benchmarks import only those before them, and no module in a circle or through `sys.path`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ORDER = ("machine", "torch_layout", "parity", "compile_time", "faults", "speed", "gpu", "studies", "pages", "table")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks").rglob("*.py")
}


def imported(module):
    """The modules of the benchmarks that a module imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module])):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("benchmarks"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return found - {"benchmarks"}


def test_a_room_imports_only_those_before_it():
    for module in MODULES.keys() - {"benchmarks", "benchmarks.__main__"}:
        first, *others = (ORDER.index(name.split(".")[1]) for name in (module, *imported(module)))
        assert max(others, default=0) <= first, f"{module} imports {imported(module)}"


def test_no_modules_import_each_other_in_a_circle():
    done = set()
    while len(done) < len(MODULES):
        free = {module for module in MODULES if module not in done and imported(module) <= done | {module}}
        assert free, f"circle among {sorted(MODULES.keys() - done)}"
        done |= free


def test_nothing_is_imported_through_a_changed_path():
    assert not [module for module, text in MODULES.items() if "sys.path." in text]
