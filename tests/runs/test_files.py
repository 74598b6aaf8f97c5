"""Atomic files, locked folders, and signals."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.files import disk_of, usage_error
from support.processes import default_signals

from fedvg_jax import sim
from fedvg_jax.config import Config
from fedvg_jax.host import files
from fedvg_jax.runs import endings
from fedvg_jax.runs.record import folder as run_folder


@pytest.mark.quick
def test_failed_replacement_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    files.replace(path, "old")
    with disk_of(100), pytest.raises(OSError, match="File too large"):
        files.replace(path, "new" * 1000)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_folder_with_only_a_lock_or_a_draft_is_free(tmp_path):
    """A kill before the first round leaves such a folder."""
    (tmp_path / ".config.json.draft").write_text("{")
    (tmp_path / files.LOCK).touch()
    run_folder.refuse_taken(tmp_path)


@pytest.fixture
def stopped_clock(tmp_path, monkeypatch):
    """A folder to run in, at an instant that does not pass."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "NOW")


def test_runs_that_start_at_once_get_folders_of_their_own(stopped_clock):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(run_folder.reserve_folder, [Config()] * 16))
    assert len(set(folders)) == 16
    for folder in folders:
        run_folder.refuse_taken(folder)  # nothing is in it
    (folders[0] / "config.json").touch()
    for folder in folders:
        run_folder.remove_unused(folder)
    assert list(Path("runs").iterdir()) == [folders[0]]


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError(), 2), (KeyboardInterrupt(), 130)], ids=["damaged", "Ctrl-C"]
)
def test_run_that_writes_nothing_leaves_no_folder_that_it_chose(
    stopped_clock, monkeypatch, capsys, error, code
):
    """It ends while its data are read."""

    def load(*file, **options):
        assert any(Path("runs").iterdir()) or Path("mine").is_dir()
        raise error

    np.savez("set.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int32))
    monkeypatch.setattr(np, "load", load)
    words = ["--dataset", "npz", "--data-dir", "set.npz", "--model", "linear"]
    assert sim.main(words) == code and not list(Path("runs").iterdir())
    assert capsys.readouterr().err.count("\n") == 1
    Path("mine").mkdir()
    assert sim.main([*words, "--out", "mine"]) == code and Path("mine").is_dir()


def test_signals_are_collected_and_a_second_sigint_has_its_usual_effect():
    """A terminal that closes sends SIGHUP twice; a scheduler may send SIGTERM to a sweep and to its processes."""
    names, lines = ["SIGHUP", "SIGHUP", "SIGTERM", "SIGTERM", "SIGINT"], []
    with default_signals():
        with endings.catch_signals(log=lines.append) as received:
            for name in names:
                signal.raise_signal(signal.Signals[name])
            assert received == names and len(lines) == 3
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [endings.exit_code(name) for name in ("SIGHUP", "SIGINT", "SIGTERM")] == [129, 130, 143]


def test_a_folder_in_use_is_refused(tmp_path):
    with files.held(tmp_path):
        with usage_error(str(tmp_path), f"process {os.getpid()}"), files.held(tmp_path):
            pass
        run_folder.refuse_taken(tmp_path)
    with files.held(tmp_path):
        pass


def test_export_to_a_link_replaces_its_target(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    files.replace(files.export_target(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "old").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_lost_terminal_changes_nothing_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with endings.catch_signals() as received:
            signal.raise_signal(signal.SIGHUP)
        assert received == [] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
