"""`fedvg COMMAND`: subcommands, and the texts of `--help` and `--help-all`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedvg_jax import __main__ as command_line
from fedvg_jax import bounds, config, sim
from fedvg_jax.config import Config
from fedvg_jax.runs import launch

ROOT = Path(__file__).parents[2]


def test_subcommands_are_the_commands_of_the_package(capsys):
    paths = [path for path in (ROOT / "fedvg_jax").glob("*.py") if not path.stem.startswith("__")]
    modules = {path.stem for path in paths if "def main(" in path.read_text()}
    assert set(command_line.COMMANDS) == modules
    assert command_line.main([]) == 0
    listed = re.findall(r"^  (\w+)  ", capsys.readouterr().out, re.M)
    assert set(listed) == modules


@pytest.mark.parametrize("main", [sim.main, bounds.main], ids=["sim", "bounds"])
def test_help_is_a_page_of_common_options_that_fits_80_columns(capsys, main):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    flags = re.findall(r"^  (--[a-z-]+)", text, re.M)
    assert 18 <= len(flags) <= 24 and {"--method", "--fidelity", "--alpha", "--resume"} <= set(flags)
    assert "--conv" not in flags and len(text.splitlines()) <= 80
    assert max(map(len, text.splitlines())) <= 80


def test_all_options_are_in_the_long_help_once(capsys):
    assert sim.main(["--help-all"]) == 0
    flags = re.findall(r"^  --([a-z0-9.-]+)", capsys.readouterr().out, re.M)
    names = [*config.flatten(Config()), "method", "fidelity", *launch.FLAGS]
    assert sorted(flags) == sorted(name.replace("_", "-") for name in names)


def test_help_and_mistakes_import_neither_jax_nor_matplotlib():
    code = "import sys; from fedvg_jax import prepare, sim; sim.main(['--help']); prepare.main(['--help']);"
    code += "prepare.main(['nosuch']); sys.exit('jax' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
