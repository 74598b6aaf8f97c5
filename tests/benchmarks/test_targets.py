"""Plans of runs on hardware that this machine does not have, from programs of a CPU in place of its compiler's."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support import exchanged

from benchmarks.gpu.targets import devices as targets
from benchmarks.gpu.targets import plan as target_plan
from benchmarks.gpu.targets import programs as target_programs
from fedvg_jax.config import Config
from fedvg_jax.core import tree
from fedvg_jax.host import hardware

ROOT = Path(__file__).parents[2]
SETTINGS = Config(rounds=3, eval_every=2, local_epochs=2, clients=4, join_ratio=0.5)
H100 = targets.parse_target("h100")


def test_a_plan_has_the_parts_of_a_round():
    """For an H100, from its programs compiled for this CPU."""
    made = target_programs.simulate_for(SETTINGS, target_programs.Machine(H100.hardware, tuple(jax.devices()[:1])))
    plan = target_plan.make_plan(made, H100, target_programs.compile_for(made, H100.hardware))
    assert plan["parts"].keys() == {"step", "segment", "scoring pass", "evaluation", "rest of a round"}
    assert all(part["kernels"] > part["copies"] >= 0 for part in plan["parts"].values())
    assert plan["fits"] and not plan["collectives"]


MOST_KERNELS = {"step": 26, "segment": 12, "scoring pass": 26}
"""Part of a round of the MLP -> upper bound of its kernels; measured 25, 10 and 23 on an H100."""


@pytest.mark.slow
@pytest.mark.parametrize(("target", "devices", "most_rest"), [("h100", 1, 72), ("h200:2x4", 8, 170)])
def test_the_kernels_of_a_step_do_not_creep_up(target, devices, most_rest):
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra cuda12")
    command = [sys.executable, "-m", "benchmarks.gpu.targets", "--target", target, "--rounds", "2"]
    plan = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    assert plan["fits"] and plan["num_devices"] == devices
    assert bool(plan["collectives"]) == (devices > 1)
    for part, most in (MOST_KERNELS | {"rest of a round": most_rest}).items():
        assert 0 < plan["parts"][part]["kernels"] <= most, part


# --- what devices exchange


def test_devices_of_a_cpu_exchange_the_clients_once_and_one_mean():
    """Its weighted mean is a loop over clients, for which XLA would gather all of them on every device."""
    four = hardware.Hardware("cpu", "cpu", num_devices=4, cores=4, memory_bytes=None)
    config = Config(rounds=2, clients=4, join_ratio=1.0, alpha=1.0, min_samples=2, devices="4")
    made = target_programs.simulate_for(config, target_programs.Machine(four, tuple(jax.devices()[:4])))
    launches, size = exchanged.of_round(target_programs.compile_for(made, four).chunk.as_text())
    model = 4 * tree.size(made.state.variables.params)
    assert launches.keys() == {"reduce-scatter", "all-reduce"}
    assert size["reduce-scatter"] == 4 * (model + 4), "every client's model and loss, zeros where it is not trained"
    assert model <= size["all-reduce"] <= model + 128, "a part of the mean, and 47 bytes of scalars when measured"
