"""Every command line in the documentation is parsed, and a run and its resumption are computed."""

import argparse
import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import programs
import pytest

from fedvg_jax import prepare, sim
from fedvg_jax.runs import chunks, launch, simulation
from fedvg_jax.study import sweep_arguments
from fedvg_jax.views import plots

ROOT = Path(__file__).parents[2]
STARTED_BY_OTHERS = ("gpu_sections", "gpu_torch", "limits_run", "ours", "peers", "pfl_peer")
"""Scripts of `benchmarks` that other scripts start, so that users do not type their command lines."""

DOCS = ROOT / "docs"
WRITTEN = [p for p in sorted(DOCS.rglob("*.md")) if not p.relative_to(DOCS).parts[0].startswith("_")]
PAGES = [ROOT / "README.md", *WRITTEN, *sorted((ROOT / "configs").rglob("*.toml"))]
SOURCES = [
    *(ROOT / "fedvg_jax" / f"{name}.py" for name in ("sim", "sweep", "prepare", "bounds")),
    *(path for path in sorted((ROOT / "benchmarks").rglob("*.py")) if path.stem not in STARTED_BY_OTHERS),
]
COMMAND = re.compile(r"python (?:-m (?:fedvg_jax|benchmarks)[\w.]*|(?:benchmarks|examples)/\w+\.py)[^`\n#(;|&]*")

SMALL = "--rounds 1 --local-epochs 1 --model mlp --clients 3 --join-ratio 1 --alpha 100 --min-samples 2".split()  # noqa: SIM905
"""One round of a small model."""

NAMES = {
    "benchmarks.paper": "bars",
    "benchmarks.configs": "cifar10_lenet5",
    "benchmarks.costs": "cores",
    "benchmarks.limits": "help",
    "benchmarks.gpu": "peaks",
    "benchmarks.targets": "digits on an H100",
}
"""Script -> value of the placeholder NAME in its usage."""


def command_lines(path: Path) -> set[str]:
    """Returns the command lines on a page, or in the docstring of a module about itself.

    Without those of executed cells (`sh run`), which the site runs, and those with variables of a shell script.
    """
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    text = re.sub(r"^```sh run\n.*?^```$", "", text, flags=re.S | re.M)
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    lines = {command.split("  ")[0].rstrip(" .,:") for command in COMMAND.findall(text)}
    name = path.parent.name if path.stem.startswith("__") else path.stem
    lines = {line for line in lines if "$" not in line}
    return lines if path.suffix != ".py" else {c for c in lines if name in c.split()[1 + ("-m" in c)]}


def arguments(command: str, files: dict[str, str]) -> tuple[str, list[str]]:
    """Returns module and arguments: placeholders replaced by `files`, brackets of optional arguments removed."""
    plain = re.sub(r"[\[\]]", " ", re.sub(r"\[\.\.\.[^\]]*\]|\.\.\.", " ", command))
    words = shlex.split(plain)[1:]
    module, *rest = words[1:] if words[0] == "-m" else [words[0].removesuffix(".py").replace("/", "."), *words[1:]]
    return module, [files.get(word, NAMES.get(module, word) if word == "NAME" else word) for word in rest]


COMMANDS = sorted(set().union(*map(command_lines, [*PAGES, *SOURCES])))
SIMS = [c for c in COMMANDS if "fedvg_jax.sim " in c]
FILES = {"N": "4"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with the configs and an empty run folder named RUN."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDVG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PROCESS_ID", "0")  # as Kubernetes numbers the pods of a job
    return tmp_path


def test_documentation_has_commands_of_every_kind():
    modules = {arguments(command, {})[0] for command in COMMANDS}
    assert {"fedvg_jax.sim", "fedvg_jax.prepare", "fedvg_jax.bounds", "benchmarks", "benchmarks.parity"} <= modules
    assert len(SIMS) > 40


def test_documented_runs_are_parsed():
    for command in SIMS:
        if "--resume R" not in command:
            values, words = launch.split(arguments(command.replace("--resume runs/first", ""), FILES)[1])
            launch.parse(values)
            settings = sim.parse(words)
            assert settings.rounds == 200 or "cifar10_resnet18" not in command, command


def test_documented_resumes_work(folder, monkeypatch):
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    monkeypatch.setattr(simulation, "make_variables", programs.variables_of_ones)
    monkeypatch.setattr(plots, "write", lambda *_: None)
    first, again = (arguments(next(c for c in SIMS if f"--resume {name}" in c), {})[1] for name in ("auto", "RUN"))
    assert sim.main([*first, *SMALL]) == 0
    (run,) = folder.glob("runs/*")
    assert sim.main([*(str(run) if word == "RUN" else word for word in again), "--rounds", "2"]) == 0
    assert len((run / "history.jsonl").read_text().splitlines()) == 2 and len(list(folder.glob("runs/*"))) == 1


def test_documented_sweeps_are_parsed():
    """With one seed, and files at their tiny size; `test_paper_sweeps.py` builds those of the paper at both sizes."""
    lines = (re.sub(r" --(out|seed) \S+", "", c) for c in COMMANDS if "fedvg_jax.sweep " in c)
    lines = {c if "tiny" in c or "configs/" not in c else f"{c} --scale tiny" for c in lines}
    assert len(lines) > 15
    for line in sorted(lines):
        words = [*arguments(line, FILES)[1], "--seed", "0", "--out", "x"]
        assert sweep_arguments.read_command_line(words).points.points, line


def test_documented_preparations_are_parsed():
    for command in (c for c in COMMANDS if "fedvg_jax.prepare " in c):
        if "prepare NAME" not in command and "prepare features" not in command:  # see test_feature_file.py
            _, downloads = prepare.parse(arguments(command, FILES)[1])
            assert downloads == ("--download" in command), command


class Parsed(Exception):
    """Raised once the arguments of a script are parsed."""


def test_documented_benchmarks_are_parsed(monkeypatch):
    """They take minutes, or torch; `test_benchmarks.py` runs their parts at small size."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, args=None, namespace=None):
        raise Parsed(parse_args(parser, args, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    for command in (c for c in COMMANDS if "benchmarks" in c):
        module, words = arguments(command, FILES)
        package = (ROOT / module.replace(".", "/")).is_dir()
        script = importlib.import_module(f"{module}.__main__" if package else module)
        monkeypatch.setattr(sys, "argv", [module, *words])
        if module != "benchmarks.machine":  # has no arguments
            with pytest.raises(Parsed):
                script.main()
