"""Every command line in the documentation is parsed, and a run and its resumption are computed."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from fedvg_jax import commands, prepare, sim, sweep as sweep_command
from fedvg_jax.runs import launch

ROOT = Path(__file__).parents[2]

WRITTEN = [
    page
    for page in (ROOT / "docs").rglob("*.md")
    if not re.search("/_|docs/studies", str(page.relative_to(ROOT)))
]
"""Without the pages that a build of the site makes."""

COMMANDS = [ROOT / "fedvg_jax" / f"{name}.py" for name in ("sim", "sweep", "prepare", "report")]
PAGES = [ROOT / "README.md", *WRITTEN, *(ROOT / "configs").rglob("*.toml"), *COMMANDS]
COMMAND = re.compile(r"""python -m fedvg_jax[\w.]*(?:"[^"\n]*"|[^`\n#(;|&"])*""")

SMALL = "--rounds 1 --local-epochs 1 --model mlp --clients 3 --join-ratio 1 --alpha 100 --min-samples 2".split()  # noqa: SIM905
"""One round of a small model."""


def command_lines(path: Path) -> set[str]:
    """Returns the command lines on a page, or in the docstring of a module.

    Without those of executed cells (`sh run`), which the site runs, and those with variables of a shell script.
    """
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\\\n *", "", text)  # a line that goes on
    text = re.sub(r"^```sh run\n.*?^```$", "", text, flags=re.S | re.M)
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    lines = {command.split("  ")[0].rstrip(" .,:") for command in COMMAND.findall(text)}
    return {line for line in lines if "$" not in line}


LINES = sorted(set().union(*map(command_lines, PAGES)))


def documented(name: str) -> list[str]:
    """Returns the documented lines of a command."""
    return [line for line in LINES if f"fedvg_jax.{name} " in line and "--help" not in line]


def arguments(line: str) -> list[str]:
    """Returns the arguments of a command line, without brackets of optional ones; the placeholder N is 4."""
    plain = re.sub(r"[\[\]]", " ", re.sub(r"\[\.\.\.[^\]]*\]|\.\.\.", " ", line))
    return ["4" if word == "N" else word for word in shlex.split(plain)[3:]]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with the configs."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PROCESS_ID", "0")  # as Kubernetes numbers the pods of a job
    return tmp_path


def test_documented_runs_are_parsed():
    lines = documented("sim")
    assert len(lines) > 40
    for line in lines:
        if "--resume R" not in line:
            _, words = launch.read(arguments(line.replace("--resume runs/first", "")))
            assert commands.parse(words).rounds == 200 or "cifar10_resnet18" not in line, line


def test_documented_resumes_work(folder):
    lines = [re.sub(r" --(config|data-dir|track) \S+", "", line) for line in documented("sim")]

    def resuming(name):
        return arguments(next(line for line in lines if f"--resume {name}" in line))

    assert sim.main([*resuming("auto"), *SMALL]) == 0
    (run,) = folder.glob("runs/*")
    (folder / "runs" / "first").symlink_to(run)
    assert sim.main([*resuming("runs/first"), "--rounds", "2"]) == 0
    assert len((run / "history.jsonl").read_text().splitlines()) == 2
    assert {*folder.glob("runs/*")} == {run, folder / "runs" / "first"}


def test_documented_sweeps_are_parsed():
    """With one seed and alpha."""
    lines = (line for line in documented("sweep") if not re.search("FILE|OPTIONS|--help", line))
    lines = (re.sub(r" --(out|seed|jobs) \S+", "", line) for line in lines)
    lines = (re.sub(r"(--alpha [\d.]+)( [\d.]+)+", r"\1", line) for line in lines)
    lines = {*lines}
    assert len(lines) > 15
    for line in sorted(lines):
        words = [*arguments(line), "--seed", "0", "--out", "x"]
        assert sweep_command.read_command_line(words).plan.trials, line


def test_documented_preparations_are_parsed():
    """Texts may name `prepare features` without the options that it needs."""
    lines = [line for line in documented("prepare") if not re.search("(prepare|set) NAME", line)]
    lines = [line for line in lines if "prepare features" not in line or "--out" in line]
    for line in lines:
        first, *words = arguments(line)
        if first == "features":
            config, size = prepare.parse_features(words)
            assert config.model and bool(size) == ("--image-size" in words)
        else:
            words = [word for word in words if word != prepare.DOWNLOAD]
            assert prepare.parse([first, *words]).dataset
    assert sum("--image-size" in line and " features " in line for line in lines) >= 2
