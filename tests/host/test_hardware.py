"""The choices that depend on hardware, also for hardware other than this machine's."""

import dataclasses

import jax
import numpy as np
import pytest

from fedvg_jax import resolve
from fedvg_jax.config import Config
from fedvg_jax.core.types import Batch
from fedvg_jax.data.arrays import Arrays
from fedvg_jax.host import hardware as hw

CPU = hw.Hardware("cpu", "cpu", num_devices=8, cores=8, memory_bytes=16 * 2**30)
GPU = hw.Hardware("gpu", "NVIDIA H100", num_devices=4, cores=16, memory_bytes=80 * 2**30)
TWO = GPU._replace(num_devices=8, num_processes=2)


@pytest.mark.parametrize(
    ("hardware", "changes", "devices"),
    [
        (CPU, {"model": "resnet18"}, 8),
        (CPU, {"model": "mlp"}, 1),
        # 640 MiB a client of half of 4 GiB
        (
            CPU._replace(memory_bytes=4 * 2**30),
            {"model": "vit_s16"},
            3,
        ),
        (CPU._replace(memory_bytes=None), {"model": "vit_s16"}, 8),
        (GPU, {"model": "mlp", "clients": 3}, 3),
        (GPU, {"model": "mlp", "devices": "2"}, 2),
        (TWO, {"model": "mlp", "clients": 3}, 4),
        (TWO._replace(num_devices=6), {"model": "mlp", "clients": 5}, 6),
        (TWO._replace(platform="cpu"), {"model": "mlp"}, 2),  # one device of each process
    ],
)
def test_a_cohort_is_shared_among_the_devices_that_pay_equally_many_of_each_process(
    hardware, changes, devices
):
    config = dataclasses.replace(Config(clients=10, join_ratio=1.0), **changes)
    with hw.assumed(hardware):
        assert resolve.machine.num_devices(config) == devices


def test_a_cohort_in_double_precision_is_shared_on_accelerators_only():
    config = Config(clients=10, join_ratio=1.0, model="resnet18")
    for hardware, expected in ((CPU, 1), (GPU, 4)):
        with jax.enable_x64(True), hw.assumed(hardware):
            assert resolve.machine.num_devices(config) == expected


def test_auto_takes_one_lane_on_a_cpu_and_four_on_an_accelerator():
    config = Config(clients=10, join_ratio=1.0)
    for hardware, expected in ((CPU, 1), (GPU._replace(num_devices=1), 4)):
        with hw.assumed(hardware):
            assert resolve.machine.make_executor(config).lanes_together == expected


@pytest.mark.parametrize(("limit", "expected"), [("max\n", None), ("4096\n", 4096)])
def test_host_memory_is_a_container_s_where_it_has_less(limit, expected, monkeypatch, tmp_path):
    whole = hw.host_memory()
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(hw, "Path", lambda path: tmp_path / "memory.max")
    assert hw.host_memory() == expected or (expected is None and hw.host_memory() >= whole)


def test_scoring_passes_may_have_convolutions_of_their_own(monkeypatch):
    """Training keeps patches and matmuls; scoring passes, one client after the other, keep XLA's convolutions."""
    monkeypatch.setattr(
        hw, "ACCELERATOR", hw.ACCELERATOR._replace(scoring_conv="lax", launch_graphs="")
    )
    config = Config(clients=4, join_ratio=1.0, model="tinycnn")
    rows = Batch(np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int32))
    arrays = Arrays("images", *rows, ("a", "b", "c"), 2)
    with hw.assumed(GPU._replace(num_devices=1, kind="with convolutions of scoring")):
        model = resolve.model.make_model(config, arrays)
        for make, has_convolutions in ((model.bound, False), (model.scored, True)):
            task = make(None)
            variables = jax.eval_shape(task.init, jax.random.key(0))
            loss = jax.make_jaxpr(lambda v, task=task: task.loss(*v, rows, np.ones(2, bool), True))
            assert ("conv_general_dilated" in str(loss(variables))) == has_convolutions
        chosen = dataclasses.replace(config, conv="gemm")
        assert resolve.model.make_model(chosen, arrays).scored is None
        assert hw.compiler_options() == {"xla_gpu_enable_command_buffer": ""}
        assert resolve.machine.make_executor(config).lanes_together == 4
    assert hw.compiler_options() is None
