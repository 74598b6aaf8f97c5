"""Atomic files, locked folders, and signals."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.files import disk_of
from support.processes import default_signals

from fedvg_jax import commands, prepare, sim
from fedvg_jax.config import Config
from fedvg_jax.core.types import UsageError
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
    ("error", "code", "text"),
    [(UsageError("no such data"), 2, "error: no such data\n"), (KeyboardInterrupt(), 130, "stopped at once\n")],
)
def test_run_that_writes_nothing_leaves_no_folder_that_it_chose(stopped_clock, monkeypatch, capsys, error, code, text):
    def train(config, *rest):
        assert config.out.is_dir()
        raise error

    monkeypatch.setattr(sim, "_train", train)
    monkeypatch.setattr(commands, "set_environment", lambda: None)
    assert sim.main([]) == code and not list(Path("runs").iterdir()) and capsys.readouterr().err == text
    Path("mine").mkdir()
    assert sim.main(["--out", "mine"]) == code and Path("mine").is_dir()


def test_failed_append_adds_no_line(tmp_path):
    path = tmp_path / "file"
    files.append(path, b"one\n", is_first=True)
    with disk_of(100), pytest.raises(OSError, match="File too large"):
        files.append(path, b"two\n" * 1000, is_first=False)
    files.append(path, b"three\n", is_first=False)
    assert path.read_text() == "one\nthree\n"


def test_first_signal_is_collected_and_a_second_has_its_usual_effect():
    before = signal.getsignal(signal.SIGTERM)
    with default_signals(), endings.catch_signals() as received:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # of a terminal that closes: the shell and the kernel send it more than once
        assert received == ["SIGHUP", "SIGHUP"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is before
    assert [endings.exit_code(name) for name in ("SIGHUP", "SIGINT", "SIGTERM")] == [129, 130, 143]


# --- the cache folder


def test_cache_folder_is_created_for_its_user_only(tmp_path):
    folder = tmp_path / "above" / "cache"
    before = os.umask(0)
    try:
        files.private_folder(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    files.private_folder(folder)


@pytest.mark.parametrize("inner", ["", "xla"])
def test_cache_folder_writable_by_others_is_refused(tmp_path, inner):
    checked = tmp_path / "cache" / inner
    checked.mkdir(parents=True)
    checked.chmod(0o720)
    with pytest.raises(UsageError, match="cache"):
        files.private_folder(tmp_path / "cache")
    checked.chmod(0o755)
    files.private_folder(tmp_path / "cache")


def test_cache_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    """Also refused for root, who may write everywhere and should not run another user's programs."""
    folder, own = tmp_path / "cache", 0
    (folder / "xla").mkdir(parents=True)
    owner = {folder / "xla": 1001}
    stat = type(folder).stat

    def of_owner(path, **options):
        status = stat(path, **options)
        return os.stat_result([*status[:4], owner.get(path, own), *status[5:]])

    monkeypatch.setattr(type(folder), "stat", of_owner)
    monkeypatch.setattr(os, "geteuid", lambda: own)
    with pytest.raises(UsageError, match="1001"):
        files.private_folder(folder)


def test_commands_refuse_a_cache_folder_writable_by_others(tmp_path, capsys):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    flags = ["--cache-dir", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    for main, words in ((sim.main, ["--dry-run"]), (prepare.main, ["digits"])):
        assert main([*words, *flags]) == 2 and not (tmp_path / "out").exists()
        assert "--cache-dir" in capsys.readouterr().err


def test_export_to_a_link_replaces_its_target(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    files.replace_bytes(files.export_target(tmp_path / "link"), [b"new"])
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
