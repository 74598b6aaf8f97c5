"""A file of settings is read by the command line only."""

import pytest

import fedvg_jax as fv
from fedvg_jax import commands


def test_file_that_names_another_file_is_refused(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('lr = 0.1\nconfig = "base.toml"\n')
    with pytest.raises(fv.UsageError, match=r"own.toml: config is read from the command line only; copy the settings"):
        commands.parse(["--config", str(file)])
