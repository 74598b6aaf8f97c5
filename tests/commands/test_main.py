"""`fedvg COMMAND`: subcommands, and the texts of `--help`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedvg_jax import __main__ as command_line, sim

ROOT = Path(__file__).parents[2]


def test_subcommands_are_the_commands_of_the_package(capsys):
    paths = [path for path in (ROOT / "fedvg_jax").glob("*.py") if not path.stem.startswith("__")]
    modules = {path.stem for path in paths if "def main(" in path.read_text()}
    assert set(command_line.COMMANDS) == modules
    assert command_line.main([]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.M)
    assert set(listed) == modules


@pytest.mark.parametrize("words", [["sim", "--help"], ["report", "--help"], ["--help"]])
def test_help_into_a_closed_pipe_ends_without_a_traceback(words, capfd, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writing, "w", buffering=1))
    with pytest.raises(SystemExit) as ended:
        command_line.run_and_exit(lambda _: command_line.main(words))
    assert ended.value.code == 0 and not capfd.readouterr().err


def test_help_and_mistakes_start_no_back_end_of_jax_and_import_no_matplotlib():
    code = "import sys; from fedvg_jax import prepare, sim; sim.main(['--help']); prepare.main(['nosuch']);"
    code += "from jax._src import xla_bridge; started = xla_bridge.backends_are_initialized();"
    code += "sys.exit(started or 'matplotlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


# --- A mistake on a command line; `tests/messages/commands.py` lists more


def test_a_mistake_prints_one_line_and_exits_with_two(capfd):
    assert sim.main(["--alpha", "0"]) == 2
    output, errors = capfd.readouterr()
    assert errors.startswith("error: ") and errors.count("\n") == 1 and not output
