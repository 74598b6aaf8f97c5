"""Floors: a room imports only rooms below it, and outside libraries live in one room each. Reads the source only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent / "fedvg_jax"
FLOORS = [  # a folder is one room
    {"types"},
    {"tree", "norms", "groups", "checks", "live", "config", "files", "interrupts", "paper"} | {"seals", "output"},
    {"algorithms", "schedule", "executors", "local", "signals", "weighting", "round", "evaluate"}
    | {"blocks", "terms", "robust", "attacks", "tuning", "controls", "differentiable", "family", "fisher", "contracts"}
    | {"data", "models", "history", "checkpoint", "provenance"},
    {"build", "presets", "plots", "pictures", "resume", "divergence"},
    {"recording", "loop", "dryrun", "rounding", "display", "verify"},
    {"sim", "prepare", "bounds"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
STAIRS = {
    *((room, "tree") for room in ("groups", "checks", "live")),
    *(("family", room) for room in ("signals", "weighting")),
    ("fisher", "signals"),
    ("weighting", "signals"),
    ("prepare", "sim"),
    ("pictures", "plots"),
    ("bounds", "sim"),
    ("robust", "weighting"),
    ("provenance", "data"),
    ("loop", "recording"),
    ("loop", "verify"),
    ("dryrun", "loop"),
    *(("display", room) for room in ("dryrun", "rounding")),
    *(("controls", room) for room in ("signals", "weighting")),
    *(("round", room) for room in ("blocks", "local", "schedule", "terms", "weighting", "robust", "attacks", "tuning")),
    *(("blocks", room) for room in ("robust", "schedule")),
    *((room, "terms") for room in ("blocks", "weighting", "controls", "contracts")),
    *(("contracts", room) for room in ("history", "schedule", "weighting")),
}
"""Imports within a floor that are meant: a round is made of these."""

ONLY_IN = {"flax": {"models"}, "tyro": {"sim", "prepare"}, "matplotlib": {"plots", "pictures"}}
NEVER_IN = {
    "jax": {"types", "config", "data", "schedule", "history", "presets", "files", "interrupts", "resume"}
    | {"seals", "output", "verify"}
}

FILES = sorted(path for path in HOUSE.rglob("*.py") if path != HOUSE / "__init__.py")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Dotted names imported at run time, anywhere in the file."""
    unread, names = [ast.parse(path.read_text(encoding="utf-8"))], []
    while unread:
        node = unread.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        unread += ast.iter_child_nodes(node)
    return names


@every_file
def test_a_room_imports_only_rooms_below_it(path):
    room = room_of(path)
    assert room in FLOOR, f"{room} has no floor yet"
    for name in imports(path):
        if name.startswith("fedvg_jax."):
            other = name.split(".")[1]
            if other in FLOOR and other != room and (room, other) not in STAIRS:
                assert FLOOR[other] < FLOOR[room], f"{room} imports {other}"


@every_file
def test_outside_libraries_stay_in_their_rooms(path):
    room, used = room_of(path), {name.split(".")[0] for name in imports(path)}
    for library in used & ONLY_IN.keys():
        assert room in ONLY_IN[library], f"{library} in {room}"
    for library in used & NEVER_IN.keys():
        assert room not in NEVER_IN[library], f"{library} in {room}"


def test_no_algorithm_imports_another():
    """But the page of what an algorithm does where it does nothing."""
    for path in (HOUSE / "algorithms").glob("*.py"):
        taken = [name for name in imports(path) if name.startswith("fedvg_jax.algorithms")]
        assert all(name.startswith("fedvg_jax.algorithms.neutral.") for name in taken), path


@every_file
def test_a_file_is_a_few_pages(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("module", ["", ".config", ".data", ".schedule", ".history", ".verify"])
def test_importing_it_imports_no_jax(module):
    code = f"import sys, fedvg_jax{module}; sys.exit('jax' in sys.modules or 'flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
