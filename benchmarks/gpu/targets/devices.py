"""Hardware that programs are compiled for on a machine that does not have it, named as in `h100:2x8`. No jax.

XLA's compilers for GPUs and TPUs need a description of a device, not the device: the figures of its data sheet.
"""

from __future__ import annotations

import importlib.util
import re
from typing import NamedTuple

from fedvg_jax.core.types import UsageError
from fedvg_jax.host.hardware import Hardware


class Device(NamedTuple):
    """One accelerator, with the figures of its data sheet."""

    platform: str
    """jax's name of the back end: "gpu" or "tpu"."""
    kind: str
    """Name that jax gives such a device."""
    memory_bytes: int
    compiler: tuple[float | str, ...]
    """Of a GPU the values of `FIGURES`, of a TPU its generation."""


FIGURES = (
    *("core_count", "fpus_per_core", "threads_per_core_limit", "shared_memory_per_core", "l2_cache_size"),
    *("shared_memory_per_block_optin", "clock_rate_ghz", "memory_bandwidth"),
)
"""Fields of XLA's description of a GPU that differ between models; then follows the compute capability."""

_HOPPER = (132, 128, 2048, 233472, 52428800, 232448, 1.98)
_AMPERE, _ADA = (108, 64, 2048, 167936, 41943040, 166912, 1.41), (142, 128, 1536, 102400, 100663296, 101376, 2.52)

DEVICES = {
    "h100": Device("gpu", "NVIDIA H100 80GB HBM3", 84929347584, (*_HOPPER, 3352320000000, 9, 0)),
    "h200": Device("gpu", "NVIDIA H200", 150754820096, (*_HOPPER, 4800000000000, 9, 0)),
    "a100": Device("gpu", "NVIDIA A100-SXM4-80GB", 85174845440, (*_AMPERE, 2039000000000, 8, 0)),
    "l40s": Device("gpu", "NVIDIA L40S", 47713091584, (*_ADA, 864000000000, 8, 9)),
    "tpu-v5e": Device("tpu", "TPU v5 lite", 16 * 2**30, ("v5e",)),
    "tpu-v6e": Device("tpu", "TPU v6 lite", 32 * 2**30, ("v6e",)),
}
"""Name of a target -> device."""

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
    device: Device
    hardware: Hardware


def parse_target(text: str) -> Target:
    """Returns the target that `--target` names.

    Args:
        text: a name of `DEVICES`; after a colon the number of devices, or hosts x devices of each.

    Raises:
        UsageError: there is no such target.

    >>> target = parse_target("h100:2x8")
    >>> target.hardware.num_devices, target.hardware.num_processes
    (16, 2)
    """
    match = re.fullmatch(r"([\w-]+)(?::(?:([1-9]\d{0,3})x)?([1-9]\d{0,3}))?", text)
    device = DEVICES.get(match[1]) if match else None
    if match is None or device is None:
        forms = "NAME, NAME:DEVICES or NAME:HOSTSxDEVICES"
        raise UsageError(f"target {text!r} is not known; use {forms}, where NAME is one of {', '.join(DEVICES)}")
    hosts, devices = int(match[2] or 1), int(match[3] or 1)
    total = hosts * devices
    if device.platform == "tpu":
        if total not in TPU_TOPOLOGIES or (match[2] and devices != CHIPS_PER_HOST):
            sizes = ", ".join(map(str, TPU_TOPOLOGIES))
            raise UsageError(f"target {text}: a slice of {match[1]} has {sizes} chips, {CHIPS_PER_HOST} a host")
        hosts = max(1, total // CHIPS_PER_HOST)
    return Target(text, device, Hardware(device.platform, device.kind, total, 0, device.memory_bytes, hosts))


def require_compiler(target: Target) -> None:
    """Raises UsageError with what to install, if the package with the target's compiler is missing."""
    module, package = PACKAGES[target.hardware.platform]
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"target {target.name} needs a compiler that is not installed: pip install {package}")


def topology(target: Target) -> dict[str, str]:
    """Returns the arguments of jax's `get_topology_desc`, for a GPU with cuDNN 9.8 and CUDA 12.9."""
    device, hardware = target.device, target.hardware
    if device.platform == "tpu":
        name = f"{device.compiler[0]}:{TPU_TOPOLOGIES[hardware.num_devices]}"
        return {"platform": "tpu", "topology_name": name}
    *figures, major, minor = device.compiler
    fields = " ".join(f"{name}: {value}" for name, value in zip(FIGURES, figures, strict=True))
    config = (
        f"gpu_device_info {{ {fields} device_memory_size: {device.memory_bytes} threads_per_block_limit: 1024"
        " threads_per_warp: 32 shared_memory_per_block: 49152 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535"
        " block_dim_limit_z: 65535 registers_per_core_limit: 65536 registers_per_block_limit: 65536"
        f" cuda_compute_capability {{ major: {major} minor: {minor} }} }}"
        ' platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 }'
        f' runtime_version {{ major: 12 minor: 9 patch: 0 }} device_description_str: "{device.kind}"'
    )
    shape = f"1x{hardware.num_processes}x{hardware.num_devices // hardware.num_processes}"
    return {"platform": "cuda", "target_config": config, "topology": shape}
