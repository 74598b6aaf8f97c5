"""The campaign of faults: a little of it always, a short one of all kinds by hand."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import damage


def test_a_damaged_run_folder_goes_on_from_what_is_whole_or_is_refused_in_one_line(tmp_path):
    counts = damage.damage(tmp_path, 12, random.Random(0))
    assert (counts["survived"], counts["lost"]) == (12, 0), counts


@pytest.mark.slow
def test_nothing_is_lost_in_a_short_campaign(tmp_path):
    command = [sys.executable, "-m", "benchmarks.faults", "--kills", "3", "--trials", "20", "--rounds", "20"]
    root = Path(__file__).parents[2]
    done = subprocess.run([*command, "--out", str(tmp_path / "found.json")], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
