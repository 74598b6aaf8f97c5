"""Every command line in the documentation works: it is run at its smallest size, or parsed where a reason is given.

The programs of these runs are traced and not compiled (`trace_only`); `test_sim.py` has runs in processes.
"""

import argparse
import ast
import dataclasses
import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import programs
import pytest

from fedvg_jax import bounds, prepare, sim
from fedvg_jax.runs import chunks, launch, simulation
from fedvg_jax.study import sweep_arguments
from fedvg_jax.views import dry_run, plots

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

ONE_ROUND = ["--rounds", "1", "--local-epochs", "1"]
SMALL = [*ONE_ROUND, *["--model", "mlp", "--clients", "3", "--join-ratio", "1", "--alpha", "100", "--min-samples", "2"]]
"""One round of a small model. The command's own model is parsed before it is replaced."""
SMALL_TEXT = [*ONE_ROUND, "--clients", "3", "--join-ratio", "1"]
"""One round on texts, whose rows suit one model only."""


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
QUICK_CONFIGS = ("cifar10_lenet5", "digits", "literature", "breast_cancer")
FULL_SIZE = [c for c in SIMS if "configs/" in c and not any(name in c for name in QUICK_CONFIGS)]
"""Runs on the paper's data sets at full size: parsed, not run. The readers have tests of their own."""

RUN_ELSEWHERE = {
    "hf:": "tests/data/test_hf.py",
    "--partition-file": "tests/data/test_partition_exchange.py",
    "--pretrained": "tests/models/test_pretrained.py",
    "--track": "tests/views/test_tracking.py",
    "--distributed": "tests/runs/test_several_processes.py",
}
"""Part of a command that needs a file, a package or a process which this one lacks -> the tests that run such."""


def is_parsed_only(command: str) -> bool:
    return command in FULL_SIZE or any(part in command for part in RUN_ELSEWHERE)


def parse(argv: list[str]):
    """Returns the settings of a command line that may be one of several processes."""
    values, others = launch.split(argv)
    launch.parse(values)
    return sim.parse(others)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Returns placeholder -> a small file or folder in the real format."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    np.savez(folder / "cifar10.npz", x=rng.integers(0, 256, (120, 32, 32, 3), np.uint8), y=np.arange(120) % 10)
    np.savez(folder / "cifar10_features.npz", x=rng.normal(size=(120, 6)).astype(np.float16), y=np.arange(120) % 10)
    np.save(folder / "x.npy", rng.integers(0, 256, (120, 8, 8, 1), np.uint8))
    np.save(folder / "y.npy", np.arange(120) % 10)
    parts = {"train": 60, "val": 20, "test": 20}
    images = {f"{part}_images": rng.integers(0, 256, (size, 28, 28), np.uint8) for part, size in parts.items()}
    labels = {f"{part}_labels": (np.arange(size) % 11)[:, None].astype(np.uint8) for part, size in parts.items()}
    np.savez(folder / "organamnist.npz", **images, **labels)
    return {
        "DIR": str(folder),
        "N": "4",
        **{name: str(folder / name) for name in ("FILE", "FILE.npz", "FILE.json", "cifar10_features.npz")},
    }


@pytest.fixture
def small(tmp_path, monkeypatch, files):
    """Returns a function that runs a command's main in a folder of its own."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDVG_CACHE_DIR", str(Path(files["DIR"]) / "cache"))
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "REPEATS", 1)
    monkeypatch.setattr(plots, "write", lambda *_: None)  # half a second a run; test_plots.py draws

    def run(main, command, *more, **placeholders):
        return main([*arguments(command, files | placeholders)[1], *more])

    return run


@pytest.fixture
def traced(monkeypatch):
    """Compiles neither rounds nor the draw of initial parameters."""
    monkeypatch.setattr(chunks, "compile_programs", programs.trace_only)
    monkeypatch.setattr(simulation, "make_variables", programs.variables_of_ones)


def test_documentation_has_commands_of_every_kind():
    modules = {arguments(command, {})[0] for command in COMMANDS}
    assert {"fedvg_jax.sim", "fedvg_jax.prepare", "fedvg_jax.bounds", "benchmarks", "benchmarks.parity"} <= modules
    assert len(SIMS) > len(FULL_SIZE) >= 8


@pytest.fixture(scope="module")
def has_run():
    """Settings, except names of folders, of the runs so far."""
    return set()


@pytest.mark.parametrize("command", [c for c in SIMS if not is_parsed_only(c) and "--resume" not in c])
@pytest.mark.usefixtures("traced")
def test_documented_run_works(command, small, tmp_path, has_run):
    """Command lines that differ only in settings that `SMALL` replaces, or in the run folder, are run once."""
    flags = SMALL_TEXT if "literature" in command else SMALL
    settings = small(sim.parse, command, *flags)
    key = repr(dataclasses.replace(settings, out=None, config=None))
    if key not in has_run:
        assert small(sim.main, command, *flags) == 0
        assert settings.dry_run or list(tmp_path.glob("runs/*/summary.json"))
        has_run.add(key)


@pytest.mark.usefixtures("traced")
def test_documented_resumes_work(small, tmp_path):
    resumes = [c for c in SIMS if "--resume" in c and not is_parsed_only(c)]
    first, again = sorted(resumes, key=lambda c: "auto" not in c)
    assert small(sim.main, first, *SMALL) == 0
    run = next(tmp_path.glob("runs/*"))
    assert small(sim.main, again, "--rounds", "2", RUN=str(run)) == 0
    assert len((run / "history.jsonl").read_text().splitlines()) == 2 and len(list(tmp_path.glob("runs/*"))) == 1


def test_other_documented_runs_are_parsed(small, monkeypatch):
    monkeypatch.setenv("JAX_PROCESS_ID", "0")  # as Kubernetes numbers the pods of a job
    for command in filter(is_parsed_only, SIMS):
        settings = small(parse, command.replace("--resume runs/first", ""))  # which an earlier command would make
        assert command not in FULL_SIZE or settings.rounds == 200, command
    assert all((ROOT / place).exists() for place in RUN_ELSEWHERE.values())


def test_documented_sweeps_are_parsed(small):
    """Files are parsed at their tiny size; those of the paper are built at both sizes by `test_paper_sweeps.py`."""
    sweeps = [c for c in COMMANDS if "fedvg_jax.sweep " in c]
    assert len(sweeps) > 15
    for command in sweeps:
        is_full = "configs/" in command and "tiny" not in command
        words = arguments(command, {})[1] + (["--scale", "tiny"] if is_full else [])
        assert small(
            lambda argv: sweep_arguments.read_command_line(argv).points.points, f"python -m x {shlex.join(words)}"
        ), command


@pytest.mark.usefixtures("traced")
def test_bounds_without_arguments_are_measured(small, tmp_path):
    """The smallest of the default clients do not fill a minibatch."""
    assert "python -m fedvg_jax.bounds" in COMMANDS
    assert small(bounds.main, "python -m fedvg_jax.bounds", *ONE_ROUND, "--out", str(tmp_path / "out")) == 0


def test_documented_preparations_work(small, capsys):
    """Those of tfds:NAME and hf:NAME are parsed: their libraries would prepare or fetch a set."""
    for command in (c for c in COMMANDS if "fedvg_jax.prepare " in c):
        if "tfds:" in command or "hf:" in command:
            config, downloads = small(prepare.parse, command)
            assert config.dataset in ("tfds:NAME", "hf:ylecun/mnist") and downloads == ("--download" in command)
        elif "prepare NAME" not in command and "prepare features" not in command:  # see test_feature_file.py
            assert small(prepare.main, command, "--clients", "3", "--alpha", "100", "--min-samples", "2") == 0
            assert "to validate" in capsys.readouterr().out


class Parsed(Exception):
    """Raised once the arguments of a script are parsed."""


def test_documented_benchmarks_are_parsed(files, monkeypatch):
    """They take minutes, or torch; `test_benchmarks.py` runs their parts at small size."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, args=None, namespace=None):
        raise Parsed(parse_args(parser, args, namespace))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    for command in (c for c in COMMANDS if "benchmarks" in c):
        module, words = arguments(command, files)
        package = (ROOT / module.replace(".", "/")).is_dir()
        script = importlib.import_module(f"{module}.__main__" if package else module)
        monkeypatch.setattr(sys, "argv", [module, *words])
        if module != "benchmarks.machine":  # has no arguments
            with pytest.raises(Parsed):
                script.main()


def test_extras_in_the_readme_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"\.\[(\w+)\]'", (ROOT / "README.md").read_text())
    assert named and set(named) <= set(extras)
