"""A command for run folders names the folder of a sweep as such."""

import pytest

from fedvg_jax.core.types import UsageError
from fedvg_jax.runs.record import folder as run_folder
from fedvg_jax.runs.record import verification


@pytest.mark.parametrize("read", [run_folder.read_config, verification.check])
def test_the_folder_of_a_sweep_is_named_as_such(tmp_path, read):
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UsageError, match=r"is a sweep; name the folders of its runs, .*points/\*"):
        read(tmp_path)
