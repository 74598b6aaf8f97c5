"""Data-sheet figures of the accelerators that programs can be compiled for without having one. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
    default_flops: float
    """Operations a second of matmuls in float32 at jax's default precision: TF32 on a GPU, bfloat16 on a TPU."""
    float32_flops: float
    """Operations a second of matmuls in full float32."""
    bfloat16_flops: float
    """Operations a second of matmuls in bfloat16."""
    link: float
    """Bytes a second to another device of the same host, or of the same TPU slice; one direction."""
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
    "h100": DeviceModel(
        "gpu", "NVIDIA H100 80GB HBM3", 132, 84929347584, 3.35232e12, 494.7e12, 66.9e12, 989.4e12, 450e9, _HOPPER
    ),
    "h200": DeviceModel("gpu", "NVIDIA H200", 132, 150754820096, 4.8e12, 494.7e12, 66.9e12, 989.4e12, 450e9, _HOPPER),
    "a100": DeviceModel(
        *("gpu", "NVIDIA A100-SXM4-80GB", 108, 85174845440, 2.039e12, 156e12, 19.5e12, 312e12, 300e9),
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
        *("gpu", "NVIDIA L40S", 142, 47713091584, 0.864e12, 183e12, 91.6e12, 362e12, 32e9),
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
    "tpu-v5e": DeviceModel(
        "tpu", "TPU v5 lite", 1, 16 * 2**30, 0.819e12, 197e12, 197e12 / 6, 197e12, 200e9, {"generation": "v5e"}
    ),
    "tpu-v6e": DeviceModel(
        "tpu", "TPU v6 lite", 1, 32 * 2**30, 1.64e12, 918e12, 918e12 / 6, 918e12, 448e9, {"generation": "v6e"}
    ),
}
"""Name of a target -> device. A float32 matmul of a TPU takes six passes in bfloat16."""


def by_kind(kind: str) -> DeviceModel | None:
    """Returns the device of that kind, as jax names it; None for any other."""
    return next((model for model in MODELS.values() if model.kind == kind), None)
