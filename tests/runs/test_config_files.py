"""A file of settings is read by the command line only: elsewhere naming one is refused, except in stored settings."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import linear

import fedvg_jax as fv
from fedvg_jax import commands
from fedvg_jax.runs import loop
from fedvg_jax.runs.record import folder as run_folder

CONFIG = fv.Config(clients=4, alpha=10.0, rounds=1, local_epochs=1, weighting="samples", keep=1, devices="1")
REFUSED = r"\AConfig: config has no effect in Python; give the settings of base.toml as fields\Z"


@pytest.mark.parametrize("resume", [None, "auto"])
def test_run_refuses_a_file_that_it_does_not_read(resume):
    with pytest.raises(fv.UsageError, match=REFUSED):
        fv.run(replace(CONFIG, config=Path("base.toml"), resume=resume), **linear.GIVEN)


def test_run_with_stored_settings_that_name_their_file_is_resumed(tmp_path):
    out = tmp_path / "run"
    started = fv.simulation(replace(CONFIG, config=Path("base.toml"), out=out), **linear.GIVEN)
    loop.run_simulation(started)
    config = replace(run_folder.read_config(out), resume=str(out), rounds=2)
    assert config.config == Path("base.toml")
    assert len(fv.run(config, **linear.GIVEN).records) == 2 == run_folder.read_config(out).rounds
    again = replace(fv.History.load(out).config, out=None, resume=None, seed=1)
    assert len(fv.run(again, **linear.GIVEN).records) == 2


def test_file_that_names_another_file_is_refused(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('lr = 0.1\nconfig = "base.toml"\n')
    with pytest.raises(fv.UsageError, match=r"own.toml: config is read from the command line only; copy the settings"):
        commands.parse(["--config", str(file)])
