"""A file of settings is read by the command line only."""

import pytest

import fedvg_jax as fv
from fedvg_jax import commands


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('config = "base.toml"', r"own.toml: config is read from the command line only; copy the settings"),
        ('[axes]\n"send" = ["none"]', r"own.toml is the file of a sweep; give it to python -m fedvg_jax.sweep"),
    ],
)
def test_file_that_names_another_file_or_is_of_a_sweep_is_refused(tmp_path, text, message):
    file = tmp_path / "own.toml"
    file.write_text(f"lr = 0.1\n{text}\n")
    with pytest.raises(fv.UsageError, match=message):
        commands.parse(["--config", str(file)])
