"""Processes of one run find each other and agree; a lost one ends the run, which then resumes."""

import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.files import one_line
from support.several_processes import commands, logs, started_together
from support.small_sweeps import timeless

from fedvg_jax.host import processes
from fedvg_jax.runs import endings, launch
from fedvg_jax.runs.record import history

# --- the command line


def test_several_processes_are_given_by_flags_or_the_environment(monkeypatch):
    def read(words):
        return launch.read(words.split())[0]

    monkeypatch.delenv("JAX_NUM_PROCESSES", raising=False)
    monkeypatch.delenv("JAX_PROCESS_ID", raising=False)
    by_hand = launch.Launch("localhost:9911", 2, 1)
    assert read("--distributed localhost:9911 --processes 2 --process 1") == by_hand
    assert read("--distributed=auto") == launch.Launch("auto") and read("") is None
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    assert read("--distributed=localhost:9911") == launch.Launch("localhost:9911", 4, 3)


# --- devices

CORES = """
import sys
from fedvg_jax import sim
from fedvg_jax.host import hardware
hardware.num_cores = lambda: 3
sim._train = lambda *_: sys.exit(len(__import__("jax").devices()))
sim.main(["--out", sys.argv[1]])
"""


def test_single_process_has_its_cores_as_devices(tmp_path, monkeypatch):
    """The number of cores is read before jax starts, without importing jax."""
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES")
    command = [sys.executable, "-c", CORES, str(tmp_path / "run")]
    assert subprocess.run(command, check=False).returncode == 3


# --- what processes agree on


def test_a_signal_of_one_process_stops_all():
    def largest_with(other):
        return lambda values: list(map(max, values, other))

    assert endings.agree([], largest_with([signal.SIGTERM])) == "SIGTERM"
    assert endings.agree(["SIGINT"], processes.largest) == "SIGINT"
    assert endings.agree([], processes.largest) is None


def test_processes_of_different_environments_are_refused(monkeypatch):
    own, sent = {"version of jax": "0.10.2", "lr": "0.1" + 100 * "x"}, []

    def exchange(text):
        """Returns the texts of this process and of the one that had this number before."""
        sent.append(text)
        return sent[::-1][:2]

    monkeypatch.setattr(processes, "exchange", exchange)
    for name, value in {"version of jax": "0.11.0", "lr": own["lr"] + "y"}.items():
        sent.clear()
        processes.refuse_different(own | {name: value}, "")
        with one_line(rf"\Aprocess 1 has {name} .*, process 0 .*; remedy\Z"):
            processes.refuse_different(own, "remedy")
    processes.refuse_different(own, "remedy")


# --- whole runs


RUN = shlex.split(
    "--clients 7 --alpha 1.0 --model mlp --rounds 100 --eval-every 20 --checkpoint-every 4"
    " --algorithm scaffold --weighting samples"
)


def together(folder, *words):
    """Starts the run in two processes, which meet at a free port."""
    return started_together(commands(2, *RUN, "--out", str(folder / "run"), *words), folder)


def history_of(folder):
    return timeless(history.read(folder / "run"))


def wait_for_rounds(folder, least, started):
    """Waits until the history has this many lines, or a process has ended."""
    path = folder / "run" / "history.jsonl"
    while all(p.poll() is None for p in started) and (
        not path.exists() or path.read_bytes().count(b"\n") < least
    ):
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_of_two_processes_survives_the_loss_of_either_at_10_instants(
    tmp_path, tmp_path_factory
):
    """Killed, or stopped like a process of a frozen host. The other ends within 60 seconds, by itself or by jax."""
    stream = random.Random(0)
    for number in range(10):
        with together(tmp_path, "--resume", "auto") as started:
            done = len(history_of(tmp_path)) if (tmp_path / "run" / "history.jsonl").exists() else 0
            wait_for_rounds(tmp_path, min(99, done + stream.randrange(1, 6)), started)
            time.sleep(stream.random() / 10)
            victim = stream.randrange(2)
            started[victim].send_signal(signal.SIGSTOP if number % 10 == 9 else signal.SIGKILL)
            start = time.monotonic()
            code = started[1 - victim].wait(60)
            text = (tmp_path / f"process{1 - victim}.log").read_text()
            waited = time.monotonic() - start
            print(
                f"{number}: process {victim} lost, the other ended with {code} in {waited:.1f} s",
                flush=True,
            )
            said = {
                launch.LOST: "another process of the run was lost",
                -signal.SIGABRT: "detected fatal errors",
            }
            assert said[code] in text, logs(tmp_path)
    with together(tmp_path, "--resume", "auto") as started:
        assert [process.wait(1000) for process in started] == [0, 0], logs(tmp_path)
    whole = tmp_path_factory.mktemp("uninterrupted")
    with together(whole) as started:
        assert [process.wait(1000) for process in started] == [0, 0], logs(whole)
    assert history_of(tmp_path) == history_of(whole)


@pytest.mark.slow
def test_a_mistake_is_reported_once_and_ends_all_processes(tmp_path):
    """One of process 0 alone, too, which writes for all."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "note.txt").write_text("taken")
    with together(tmp_path) as started:
        assert [process.wait(200) for process in started] == [2, 2], logs(tmp_path)
    first, second = (Path(tmp_path, f"process{i}.log").read_text() for i in range(2))
    assert "error: " in first and "is taken" in first and "error: " not in second
