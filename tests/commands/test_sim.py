"""The command line, in processes of its own where a process matters: runs, stops, errors."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
from support.processes import started

from fedvg_jax import commands, sim
from fedvg_jax.config import Config

SHORT = shlex.split("--rounds 3 --eval-every 2 --local-epochs 1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a short run."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert sim.main([*SHORT, "--out", str(out)]) == 0
    return out


def test_taken_run_folder_is_refused_and_unchanged(folder, capsys):
    before = (folder / "history.jsonl").read_bytes()
    assert sim.main([*SHORT, "--out", str(folder)]) == 2 and "taken" in capsys.readouterr().err
    assert (folder / "history.jsonl").read_bytes() == before


def test_closed_output_does_not_end_the_run(tmp_path, monkeypatch):
    """As in `sim ... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writing, "w", buffering=1))
    assert sim.main([*SHORT, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 3


def test_unavailable_back_end_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nosuch")
    command = [sys.executable, "-m", "fedvg_jax.sim", *SHORT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "JAX_PLATFORMS" in done.stderr


def test_command_line_overrides_the_file_which_overrides_the_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "cifar10"\nlr = 0.5\nrounds = 7\n[fedvg]\nnorm = "l2"\n')
    made = commands.parse(["--config", str(file), "--rounds", "9"])
    values = made.dataset, made.clients, made.lr, made.rounds, made.fedvg.norm
    assert values == ("cifar10", 100, 0.5, 9, "l2")
    assert commands.parse(["--dataset", "cifar10"]).clients == 100
    assert commands.parse([]) == Config(cache_dir=commands.parse([]).cache_dir)


# --- signals before the first round

AT_IMPORT = """
import gc, os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "jaxlib":
            sys.meta_path.remove(self)
            gc.callbacks.append(lambda phase, info: os.kill(os.getpid(), signal.SIGINT))
            gc.collect()

sys.meta_path.insert(0, Finder())
runpy.run_module("fedvg_jax.sim", run_name="__main__")
"""
"""Sends a signal while Python collects garbage, amid the import of jax."""


def test_stop_signal_while_jax_is_imported_ends_the_process(tmp_path):
    """An exception in a callback of the garbage collector would be printed and lost."""
    command = [sys.executable, "-c", AT_IMPORT, *SHORT, "--out", str(tmp_path / "run")]
    with started(command) as process:
        output = process.communicate(timeout=240)
    assert (process.returncode, output) == (-signal.SIGINT, ("", ""))
