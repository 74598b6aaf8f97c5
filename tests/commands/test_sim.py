"""The command line, in processes of its own where a process matters: runs, stops, errors."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest
from support import xla_flags
from support.processes import started

from fedvg_jax import commands, sim
from fedvg_jax.config import Config
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import history, stored

SHORT = ["--rounds", "3", "--eval-every", "2", "--local-epochs", "1"]


ENVIRONMENT = os.environ | {"XLA_FLAGS": ""}
"""Of a process with the default flags of XLA."""


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


def test_hup_ends_a_run_on_a_terminal_after_a_checkpoint(tmp_path):
    out = tmp_path / "hung-up"
    parent, child = pty.openpty()
    small = [
        "--dataset",
        "iris",
        "--model",
        "linear",
        "--clients",
        "3",
        "--join-ratio",
        "1",
        "--alpha",
        "100",
    ]
    arguments = [*SHORT, *small, "--rounds", "1000000", "--out", str(out)]
    command = [sys.executable, "-m", "fedvg_jax.sim", *arguments]
    env, pieces = (
        os.environ | {"TERM": "xterm", "COLUMNS": "120", "XLA_FLAGS": xla_flags.environment()},
        [],
    )

    def read():
        with contextlib.suppress(OSError):  # the terminal closes with the process
            while True:
                pieces.append(os.read(parent, 4096))

    with started(command, cwd=tmp_path, env=env, stdout=child) as process:
        os.close(child)
        reader = threading.Thread(target=read)
        reader.start()

        def wait_for(condition):
            deadline = time.monotonic() + 240
            while not condition() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            assert condition() and process.poll() is None, process.stderr.read()

        wait_for((out / "history.jsonl").exists)
        process.send_signal(signal.SIGHUP)
        code, errors = process.wait(timeout=120), process.stderr.read()
        reader.join()
    assert (code, errors) == (129, "")
    assert stored.newest_round(out) == len(history.read(out))
    shown = b"".join(pieces).decode()
    assert all(part in shown for part in ("/1000000", "test accuracy", "left", "interrupted"))


def test_unavailable_back_end_is_one_line(tmp_path):
    command, environment = (
        [sys.executable, "-m", "fedvg_jax.sim", *SHORT],
        ENVIRONMENT | {"JAX_PLATFORMS": "nosuch"},
    )
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "JAX_PLATFORMS" in done.stderr


def test_command_line_overrides_the_file_which_overrides_the_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('dataset = "cifar10"\nlr = 0.5\nrounds = 7\n[fedvg]\nnorm = "l2"\n')
    made = commands.parse(["--config", str(file), "--rounds", "9"])
    assert (made.dataset, made.clients, made.lr, made.rounds, made.fedvg.norm) == (
        "cifar10",
        100,
        0.5,
        9,
        "l2",
    )
    assert commands.parse(["--dataset", "cifar10"]).clients == 100
    assert commands.parse([]) == Config(cache_dir=commands.parse([]).cache_dir)


def test_arrays_in_a_file_train(tmp_path, capsys):
    import numpy as np

    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (rng.integers(0, 60, (240, 16, 16, 1)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    args = [
        "--dataset",
        "npz",
        "--data-dir",
        str(tmp_path),
        "--clients",
        "4",
        "--rounds",
        "2",
        "--eval-every",
        "2",
    ]
    more = ["--export", str(tmp_path / "model.safetensors")]
    assert (
        sim.main([*args, "--model", "mlp", "--alpha", "1", "--out", str(tmp_path / "out"), *more])
        == 0
    )
    size = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    tensors = json.loads((tmp_path / "model.safetensors").read_bytes()[8 : 8 + size])
    assert tensors["classifier.weight"]["shape"][0] == 3
    assert "mine: 240 images [16, 16, 1], 3 of 3 classes" in capsys.readouterr().out


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
    with started(
        [sys.executable, "-c", AT_IMPORT, *SHORT, "--out", str(tmp_path / "run")], env=ENVIRONMENT
    ) as process:
        output = process.communicate(timeout=240)
    assert (process.returncode, output) == (-signal.SIGINT, ("", ""))


def test_commands_in_a_callers_process_leave_its_signals_alone(capsys):
    before = [signal.getsignal(number) for number in endings.STOPPING]
    assert sim.main(["--alpha", "0"]) == 2 and "alpha must be > 0" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in endings.STOPPING] == before
