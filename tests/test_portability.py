"""No module needs what Windows or macOS lack: modules and functions of POSIX, /proc, and folders that can be opened.

The tests run on Linux without those parts. They show that the package has no such need, not that it works there.
"""

import enum
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

import fedvg_jax
from fedvg_jax.core import files, hardware
from fedvg_jax.runs import stop_signals, sweep_workers
from fedvg_jax.runs.record import checkpoint

ROOT = Path(fedvg_jax.__file__).parent
MODULES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if path.stem != "__main__" and path.parent != ROOT
)
POSIX_MODULES = ("fcntl", "resource", "pty", "tty", "termios", "pwd", "grp", "syslog")
POSIX_FUNCTIONS = (
    *("fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "geteuid", "getuid", "getpgid", "killpg", "setsid"),
    *("uname", "sysconf", "set_blocking", "mkfifo", "statvfs", "getloadavg", "O_DIRECTORY", "O_NONBLOCK", "O_CLOEXEC"),
)
WINDOWS_SIGNALS = ("SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV")


@pytest.fixture
def windows_like(tmp_path, monkeypatch):  # pytest makes the folder of a test with POSIX functions
    """Removes POSIX modules, functions and signals."""
    for name in POSIX_MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    for name in POSIX_FUNCTIONS:
        monkeypatch.delattr(os, name, raising=False)
    signals = enum.IntEnum("Signals", {name: getattr(signal, name).value for name in WINDOWS_SIGNALS})
    for name in [name for name in dir(signal) if name.startswith("SIG") and name.isalpha()]:
        if name not in WINDOWS_SIGNALS:
            monkeypatch.delattr(signal, name)
    monkeypatch.setattr(signal, "Signals", signals)


@pytest.fixture
def loaded():
    """Returns the modules of the package, except those of extras that are not installed."""
    modules = []
    for name in MODULES:
        try:
            modules.append(importlib.import_module(f"fedvg_jax.{name}"))
        except ImportError as error:
            assert error.name is not None and not error.name.startswith("fedvg_jax"), error
    return modules


def test_every_module_is_imported_without_posix(loaded, windows_like, monkeypatch):
    for module in loaded:
        assert module.__file__ is not None
        spec = importlib.util.spec_from_file_location(f"portable.{module.__name__}", module.__file__)
        assert spec is not None and spec.loader is not None
        again = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, again)  # where dataclasses look their module up
        spec.loader.exec_module(again)
    assert len(loaded) > 100


def test_files_are_written_and_locks_are_skipped_where_folders_cannot_be_opened(windows_like, monkeypatch, tmp_path):
    opened, real = [], os.open

    def open_files_only(path, flags, *args):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        opened.append(flags)
        return real(path, flags, *args)

    monkeypatch.setattr(os, "open", open_files_only)
    files.replace(tmp_path / "a.txt", "first")
    files.replace(tmp_path / "a.txt", "second")
    files.flush([tmp_path, tmp_path / "a.txt"])
    assert (tmp_path / "a.txt").read_text() == "second" and opened == [os.O_RDWR]
    files.private_folder(tmp_path / "cache", is_trusted=False)
    with files.held(tmp_path), files.held(tmp_path), files.claimed(tmp_path / "b") as is_held:
        assert is_held and (tmp_path / "cache").is_dir()


def test_cores_and_memory_have_fallbacks(windows_like):
    assert hardware.num_cores() == os.cpu_count()
    assert hardware.host_memory() is None or hardware.host_memory() > 0


def test_unknown_name_of_sysconf_leaves_the_memory_unknown(monkeypatch):
    def sysconf(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", sysconf, raising=False)
    assert hardware.host_memory() is None or hardware.host_memory() > 0


def test_signals_are_watched_where_pipes_cannot_be_set_to_not_block(windows_like, monkeypatch):
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *args, **options: -1)  # Linux refuses a pipe that blocks
    with stop_signals.watch(lambda: "", grace=1.0), stop_signals.catch_signals() as requests:
        assert requests == ([], [])


def test_worker_on_windows_is_ended_by_terminate(monkeypatch):
    calls = []

    class Worker:
        def poll(self):
            return None

        def terminate(self):
            calls.append("terminate")

    monkeypatch.setattr(sys, "platform", "win32")
    sweep_workers._send(Worker(), "SIGINT")
    assert calls == ["terminate"]


def test_checkpoint_folder_on_a_drive_needs_no_link(monkeypatch):
    monkeypatch.setattr(os.path, "splitdrive", lambda path: ("C:", "/Users/me/runs/1"))
    folder = Path("C:/Users/me/runs/1")
    with checkpoint._plain(folder) as plain:
        assert plain is folder
