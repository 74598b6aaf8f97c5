"""Hardware that programs are compiled for on a machine that does not have it, named as in `h100:2x8`. No jax.

XLA's compilers for GPUs and TPUs need a description of a device, not the device: the figures of its data sheet.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.host.hardware import Hardware


class DeviceModel(NamedTuple):
    """One accelerator, with the figures of its data sheet (dense, without sparsity)."""

    platform: str
    """jax's name of the back end: "gpu" or "tpu"."""
    kind: str
    """Name that jax gives such a device."""
    processors: int
    """Multiprocessors of a GPU, cores of a TPU chip."""
    memory_bytes: int
    bandwidth: float
    """Bytes a second of its memory."""
    compiler: Mapping[str, int | float | str]
    """What XLA's compiler needs beyond this: of a GPU the fields of its target config, of a TPU its `generation`."""


_HOPPER = {
    "fpus_per_core": 128,
    "major": 9,
    "minor": 0,
    "threads_per_core_limit": 2048,
    "shared_memory_per_core": 233472,
    "shared_memory_per_block_optin": 232448,
    "l2_cache_size": 52428800,
    "clock_rate_ghz": 1.98,
}

MODELS: dict[str, DeviceModel] = {
    "h100": DeviceModel("gpu", "NVIDIA H100 80GB HBM3", 132, 84929347584, 3.35232e12, _HOPPER),
    "h200": DeviceModel("gpu", "NVIDIA H200", 132, 150754820096, 4.8e12, _HOPPER),
    "a100": DeviceModel(
        *("gpu", "NVIDIA A100-SXM4-80GB", 108, 85174845440, 2.039e12),
        {
            "fpus_per_core": 64,
            "major": 8,
            "minor": 0,
            "threads_per_core_limit": 2048,
            "shared_memory_per_core": 167936,
            "shared_memory_per_block_optin": 166912,
            "l2_cache_size": 41943040,
            "clock_rate_ghz": 1.41,
        },
    ),
    "l40s": DeviceModel(
        *("gpu", "NVIDIA L40S", 142, 47713091584, 0.864e12),
        {
            "fpus_per_core": 128,
            "major": 8,
            "minor": 9,
            "threads_per_core_limit": 1536,
            "shared_memory_per_core": 102400,
            "shared_memory_per_block_optin": 101376,
            "l2_cache_size": 100663296,
            "clock_rate_ghz": 2.52,
        },
    ),
    "tpu-v5e": DeviceModel("tpu", "TPU v5 lite", 1, 16 * 2**30, 0.819e12, {"generation": "v5e"}),
    "tpu-v6e": DeviceModel("tpu", "TPU v6 lite", 1, 32 * 2**30, 1.64e12, {"generation": "v6e"}),
}
"""Name of a target -> device."""

FORMS = "NAME, NAME:DEVICES or NAME:HOSTSxDEVICES"

CHIPS_PER_HOST = 4
"""Chips of one host of TPU v5e or v6e, in slices of more than one chip."""

TPU_TOPOLOGIES = {1: "2x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
"""Number of chips -> topology of a slice of TPU v5e or v6e; libtpu describes no slice of one chip."""

PACKAGES = {"gpu": ("jax_cuda12_plugin", "'jax[cuda12]'"), "tpu": ("libtpu", "libtpu")}
"""Platform -> module with its compiler, and how pip names the package."""

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Environment variables with which jax computes on the CPU and its plugins describe devices that do not exist."""


class Target(NamedTuple):
    """Hardware to compile for."""

    name: str
    """As in `--target`."""
    model: DeviceModel
    hardware: Hardware


def parse_target(text: str) -> Target:
    """Returns the target that `--target` names.

    Args:
        text: a name of `MODELS`; after a colon the number of devices, or hosts x devices of each.

    Raises:
        UsageError: there is no such target.

    >>> target = parse_target("h100:2x8")
    >>> target.hardware.num_devices, target.hardware.num_processes
    (16, 2)
    """
    match = re.fullmatch(r"([\w-]+)(?::(?:([1-9]\d{0,3})x)?([1-9]\d{0,3}))?", text)
    model = MODELS.get(match[1]) if match else None
    if match is None or model is None:
        raise UsageError(f"target {text!r} is not known; use {FORMS}, where NAME is one of {', '.join(MODELS)}")
    hosts, devices = int(match[2] or 1), int(match[3] or 1)
    total = hosts * devices
    if model.platform == "tpu":
        if total not in TPU_TOPOLOGIES or (match[2] and devices != CHIPS_PER_HOST):
            sizes = ", ".join(map(str, TPU_TOPOLOGIES))
            raise UsageError(f"target {text}: a slice of {match[1]} has {sizes} chips, {CHIPS_PER_HOST} a host")
        hosts = max(1, total // CHIPS_PER_HOST)
    hardware = Hardware(model.platform, model.kind, total, 0, model.memory_bytes, hosts)
    return Target(text, model, hardware)


def require_compiler(target: Target) -> None:
    """Raises UsageError with what to install, if the package with the target's compiler is missing."""
    module, package = PACKAGES[target.hardware.platform]
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"target {target.name} needs a compiler that is not installed: pip install {package}")


def prepare_environment(target: Target) -> None:
    """Sets the environment in which jax computes on the CPU and compiles for the target; before jax is imported.

    Raises:
        UsageError: the package with the target's compiler is missing.
    """
    require_compiler(target)
    os.environ.update(ENVIRONMENT)


def gpu_target_config(model: DeviceModel) -> str:
    """Returns XLA's `GpuTargetConfigProto` of a GPU as text, with cuDNN 9.8 and CUDA 12.9."""
    figures = model.compiler
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": figures["shared_memory_per_core"],
        "threads_per_core_limit": figures["threads_per_core_limit"],
        "core_count": model.processors,
        "fpus_per_core": figures["fpus_per_core"],
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(model.bandwidth),
        "l2_cache_size": figures["l2_cache_size"],
        "clock_rate_ghz": figures["clock_rate_ghz"],
        "device_memory_size": model.memory_bytes,
        "shared_memory_per_block_optin": figures["shared_memory_per_block_optin"],
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    fields = " ".join(f"{name}: {value}" for name, value in device.items())
    capability = f"cuda_compute_capability {{ major: {figures['major']} minor: {figures['minor']} }}"
    return (
        f'gpu_device_info {{ {fields} {capability} }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}'
        f' runtime_version {{ major: 12 minor: 9 patch: 0 }} device_description_str: "{model.kind}"'
    )
