"""The choices that depend on hardware, also for hardware other than this machine's."""

import ast
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_architecture import sources

from fedvg_jax.config import Config
from fedvg_jax.core import hardware as hw
from fedvg_jax.core import tree
from fedvg_jax.models import layers
from fedvg_jax.models.conv import patches, selection, winograd
from fedvg_jax.runs import registry

CPU = hw.Hardware("cpu", "cpu", num_devices=8, cores=8, memory_bytes=16 * 2**30)
GPU = hw.Hardware("gpu", "NVIDIA H100", num_devices=4, cores=16, memory_bytes=80 * 2**30)
TPU = hw.Hardware("tpu", "TPU v5e", num_devices=4, cores=16, memory_bytes=None)
accelerators = pytest.mark.parametrize("hardware", [GPU, TPU], ids=lambda h: h.platform)


def test_current_hardware_is_what_jax_computes_on():
    hardware = hw.current()
    assert (hardware.platform, hardware.num_devices) == (jax.default_backend(), len(jax.devices()))
    assert hardware.kind == jax.devices()[0].device_kind and hardware.cores >= 1


def test_a_cpu_gets_images_last_and_winograd_for_any_size():
    assert selection.layout("auto", CPU).images == -1
    assert {hw.auto_conv(side**2, CPU) for side in (1, 64, 65, 512)} == {"winograd"}


@accelerators
def test_an_accelerator_gets_patches_up_to_64_pixels_and_the_library_s_convolution_above(hardware):
    assert selection.layout("auto", hardware).images == 0
    assert [hw.auto_conv(side**2, hardware) for side in (1, 64, 65, 512)] == ["gemm", "gemm", "lax", "lax"]


@accelerators
def test_an_accelerator_gets_planes_or_winograd_only_by_name(hardware):
    """16 channels at 8 x 8 are what Winograd is for."""
    x, w = jax.ShapeDtypeStruct((2, 8, 8, 16), jnp.float32), jax.ShapeDtypeStruct((3, 3, 16, 16), jnp.float32)

    def program_of(name):
        conv = selection.convolution(name, hardware)
        program = jax.make_jaxpr(lambda x, w: conv(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return str(program(x, w))

    assert winograd.tile_size((8, 8)) == 4
    assert program_of("auto") == program_of("gemm") != program_of("winograd")
    assert selection.layout("planes", hardware).images == -1


def test_only_a_cpu_copies_patches_of_few_channels_in_contiguous_runs():
    x, w = jnp.ones((2, 9, 8, 3)), jnp.ones((7, 7, 3, 4))

    def num_slices(hardware):
        program = jax.make_jaxpr(lambda x, w: patches.gemm_conv(x, w, (1, 1), "SAME", hardware=hardware))(x, w)
        return str(program).count(" slice[")

    assert num_slices(CPU) == 9 + 8 and num_slices(GPU) == 7 * 7


def test_only_a_cpu_gets_fusion_barriers():
    programs = [str(jax.make_jaxpr(lambda x, h=h: layers.fusion_barrier(x, h))(jnp.ones(3))) for h in (CPU, GPU, TPU)]
    assert ["cond" in program for program in programs] == [True, False, False]


@pytest.mark.parametrize(
    ("hardware", "batch_size", "groups"), [(CPU, 1, 1), (CPU, 64, 1), (GPU, 64, 16), (GPU, 1000, 1), (GPU, 2048, 1)]
)
def test_scoring_takes_about_1024_rows_at_once_on_an_accelerator_and_one_group_on_a_cpu(hardware, batch_size, groups):
    assert hw.groups_per_scoring_pass(batch_size, hardware=hardware) == groups


@pytest.mark.parametrize(
    ("hardware", "changes", "devices"),
    [
        (CPU, {"model": "resnet18"}, 8),
        (CPU, {"model": "mlp"}, 1),
        (CPU, {"model": "vit_b16"}, 1),
        (CPU, {"model": "vit_s16"}, 8),
        (CPU._replace(memory_bytes=4 * 2**30), {"model": "vit_s16"}, 3),  # 640 MiB a client of half of 4 GiB
        (CPU._replace(memory_bytes=None), {"model": "vit_s16"}, 8),
        (CPU._replace(num_devices=2), {"model": "resnet18"}, 2),
        (GPU, {"model": "mlp"}, 4),
        (GPU, {"model": "vit_b16"}, 4),
        (GPU, {"model": "mlp", "clients": 3}, 3),
        (GPU, {"model": "mlp", "devices": "2"}, 2),
    ],
)
def test_auto_shares_a_cohort_among_the_devices_that_pay(hardware, changes, devices):
    config = dataclasses.replace(Config(clients=10, join_ratio=1.0), **changes)
    assert registry.num_devices(config, hardware) == devices


def test_a_cohort_in_double_precision_is_shared_on_accelerators_only():
    config = Config(clients=10, join_ratio=1.0, model="resnet18")
    with jax.enable_x64(True):
        assert [registry.num_devices(config, hardware) for hardware in (CPU, GPU)] == [1, 4]


def test_an_accelerator_gets_one_product_for_the_weighted_mean_and_a_cpu_a_loop():
    weights, stack = jnp.array([0.25, 0.75]), jnp.arange(12.0).reshape(2, 3, 2)

    def program_of(hardware):
        return str(jax.make_jaxpr(lambda w, x, o: tree.weighted_sum(w, x, o, hardware))(weights, stack, stack[0]))

    assert [("while" in program_of(h) or "scan" in program_of(h)) for h in (CPU, GPU, TPU)] == [True, False, False]
    on_gpu, on_cpu = (tree.weighted_sum(weights, stack, stack[0], hardware) for hardware in (GPU, CPU))
    np.testing.assert_array_equal(on_gpu, on_cpu)
    gradients = [jax.grad(lambda w, h=h: tree.weighted_sum(w, stack, stack[0], h).sum())(weights) for h in (GPU, CPU)]
    np.testing.assert_array_equal(*gradients)


def test_auto_takes_one_lane_on_a_cpu_and_four_on_an_accelerator():
    config = Config(clients=10, join_ratio=1.0, model="mlp")
    machines = CPU, GPU._replace(num_devices=1)
    assert [registry.make_executor(config, machine).lanes_together for machine in machines] == [1, 4]


@pytest.mark.parametrize(("limit", "expected"), [("max\n", None), ("4096\n", 4096)])
def test_host_memory_is_a_container_s_where_it_has_less(limit, expected, monkeypatch, tmp_path):
    whole = hw.host_memory()
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(hw, "Path", lambda path: tmp_path / "memory.max")
    assert hw.host_memory() == expected or (expected is None and hw.host_memory() >= whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model name\t: X\nflags\t\t: fpu avx2 fma avx sse\nbugs\t: avx512f\n", ["avx", "avx2", "fma"]),
        ("Features\t: fp asimd evtstrm\n", ["asimd"]),
        ("", []),
    ],
    ids=["x86", "arm", "unknown"],
)
def test_vector_instructions_are_those_of_the_processor(monkeypatch, text, expected):
    monkeypatch.setattr(hw.Path, "read_text", lambda path, encoding: text)
    assert hw.vector_instructions() == expected


ASKS_JAX = {
    "core/hardware": "finds the hardware",
    "engine/executors": "places arrays on the devices",
    "runs/launch": "compares the processes' numbers of devices",
    "runs/record/provenance": "records the device in manifest.json",
    "sim": "starts jax, to report a missing device in one line",
}
"""Modules that ask jax for its back end or devices -> why."""


def test_no_other_module_asks_jax_for_the_back_end_to_choose():
    names = {"default_backend", "devices", "local_devices", "device_count", "local_device_count"}
    asking = {
        module
        for module, source in sources().items()
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and node.attr in names
        if isinstance(node.value, ast.Name) and node.value.id == "jax"
    }
    assert asking == set(ASKS_JAX)
