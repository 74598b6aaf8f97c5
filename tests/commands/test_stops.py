"""Signals to the command line of a run: a line at once, a checkpoint after the round, and a second one."""

import shlex
import signal
import sys
import time

import pytest
from support.processes import started

from fedvg_jax.runs.record import history, stored

ROUND = shlex.split(
    "--rounds 3 --local-epochs 6000 --model linear --devices 1 --checkpoint-every 1"
)
"""Rounds of two seconds on an idle core."""


def until(process, condition):
    """Waits for a condition while a process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("signals", "code", "is_saved"),
    [
        ([signal.SIGINT], 130, True),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT], 143, True),
        ([signal.SIGINT, signal.SIGINT], -signal.SIGINT, False),
    ],
    ids=["SIGINT", "SIGTERM twice and others", "SIGINT twice"],
)
def test_a_run_says_at_once_that_it_stops_and_only_a_second_sigint_ends_it_amid_a_round(
    tmp_path, signals, code, is_saved
):
    run = tmp_path / "run"
    with started([sys.executable, "-m", "fedvg_jax.sim", *ROUND, "--out", str(run)]) as process:
        until(process, lambda: stored.newest_round(run) == 1)
        sent, output = time.monotonic(), process.stdout
        assert output
        for number, each in enumerate(signals):
            process.send_signal(each)
            while each not in signals[:number] and each.name not in output.readline():
                assert process.poll() is None
            # amid the second round
            assert time.monotonic() - sent < 1 and stored.newest_round(run) == 1
        rest, errors = process.communicate()
    assert process.returncode == code and not errors
    assert stored.newest_round(run) == len(history.read(run)) == (2 if is_saved else 1)
    assert (run / "summary.json").exists() == is_saved and ("--resume" in rest) == is_saved
