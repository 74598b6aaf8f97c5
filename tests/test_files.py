"""Files whole or not at all, folders held by one, and being asked to stop."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedvg_jax import files, history, interrupts, output
from fedvg_jax.types import UsageError


@contextmanager
def disk_of(size):
    """No file may grow past `size` bytes: writes then fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path):
    path = tmp_path / "file"
    files.replace(path, "old")
    with disk_of(100), pytest.raises(OSError):
        files.replace(path, "new" * 1000)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_lines_are_added_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    files.append(path, "one\n", is_first=True)
    with disk_of(100), pytest.raises(OSError):
        files.append(path, "two\n" * 1000, is_first=False)
    files.append(path, "three\n", is_first=False)
    assert path.read_text() == "one\nthree\n"


def test_a_file_that_was_deleted_meanwhile_is_not_begun_again(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.append(tmp_path / "file", "two\n", is_first=False)


def test_a_folder_of_which_only_a_lock_or_a_draft_was_left_is_free(tmp_path):
    """As by a kill before the run had begun."""
    (tmp_path / ".config.json.draft").write_text("{")
    (tmp_path / files.LOCK).touch()
    history.refuse_taken(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(UsageError, match="is taken"):
        history.refuse_taken(tmp_path)


def test_a_folder_is_held_by_one_and_let_go_of(tmp_path):
    with files.held(tmp_path):
        with pytest.raises(UsageError, match=f"in use by process {os.getpid()} on") as error, files.held(tmp_path):
            pass
        assert "\n" not in str(error.value)
    with files.held(tmp_path):
        pass


def test_the_first_signal_is_noted_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGTERM)
    with interrupts.catch_signals() as requests:
        signal.raise_signal(signal.SIGTERM)
        assert requests.stop == ["SIGTERM"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    assert [interrupts.exit_code(name) for name in ("SIGHUP", "SIGINT", "SIGTERM")] == [129, 130, 143]


def test_outside_the_main_thread_nothing_is_noted():
    found = []

    def listen():
        with interrupts.catch_signals() as requests, interrupts.watch(lambda: "unused"):
            found.append(requests)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [([], [])]


DEAF = """
import ctypes
from fedvg_jax import interrupts
mutex, wait = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
wait(mutex)
with interrupts.catch_signals(), interrupts.watch(lambda: "bye", {grace}):
    print("ready", flush=True)
    wait(mutex)
"""


@pytest.mark.parametrize(
    ("sent", "grace", "code"),
    [
        (["SIGTERM"], 0.1, 143),
        (["SIGINT"], 0.1, 130),
        (["SIGINT", "SIGINT"], 60, 130),
        (["SIGTERM", "SIGINT"], 60, 130),
        (["SIGHUP"], 0.1, 129),
        (["SIGHUP", "SIGHUP", "SIGTERM", "SIGINT"], 60, 130),
        (["SIGUSR1", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGTERM"], 60, 143),
    ],
)
def test_the_watch_ends_a_process_whose_main_thread_does_not_hear(sent, grace, code):
    """As it does not while it waits for the device, or here in C for a mutex it holds itself."""
    command = [sys.executable, "-c", DEAF.format(grace=grace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for name in sent:
            process.send_signal(signal.Signals[name])
            time.sleep(0.05)  # two at once may come in either order
        assert process.wait(timeout=30) == code
        assert process.stderr.read() == "bye\n"


def test_output_that_closes_is_dropped():
    """As a pipe into head, or a log on a full disk."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", buffering=1)
    lasting = output.LastingOutput(stream)
    assert lasting.write("lost\n") == 5
    lasting.flush()
    assert not lasting.isatty()
    stream.close()  # flushes what is left, to the null device


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "broken link", "link to a device", "no folder", "file/x"])
def test_an_export_to_what_is_no_regular_file_is_refused(tmp_path, kind):
    path = tmp_path / "model"
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: None,
        "broken link": lambda: path.symlink_to(tmp_path / "gone"),
        "link to a device": lambda: path.symlink_to("/dev/full"),
        "no folder": lambda: None,
        "file/x": path.touch,
    }
    make[kind]()
    changed = {"device": "/dev/full", "no folder": path / "deeper" / "model", "file/x": path / "x"}
    with pytest.raises(UsageError, match=r"\Aexport [^\n]*\Z"):
        files.export_target(Path(changed.get(kind, path)))


def test_an_export_to_a_link_replaces_the_file_it_points_to(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    files.replace_bytes(files.export_target(tmp_path / "link"), [b"new"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "old").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_under_nohup_a_lost_terminal_changes_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.catch_signals() as requests:
            signal.raise_signal(signal.SIGHUP)
        assert requests.stop == [] and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_public_names_are_listed():
    import fedvg_jax

    assert set(fedvg_jax.__all__) <= set(dir(fedvg_jax))
