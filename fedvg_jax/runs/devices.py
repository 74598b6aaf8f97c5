"""Where clients train: lanes on a device, and the devices that share a cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from fedvg_jax.config import Config, block_size, cohort_size
from fedvg_jax.core import hardware as hw
from fedvg_jax.core.types import Executor, UsageError
from fedvg_jax.engine import executors


def make_executor(
    config: Config, hardware: hw.Hardware | None = None, devices: Sequence[Any] | None = None
) -> Executor:
    """Returns the executor for the settings `lanes` and `devices`.

    Args:
        config: its `lanes` is a number per device, "all", or "auto": as `hardware.Choices.max_lanes`.
        hardware: defaults to `hardware.current()`.
        devices: jax's devices of that hardware; defaults to those of this process.
    """
    if config.lanes == "all":
        return executors.vmapped()
    count = num_devices(config, hardware)
    max_lanes = hw.choices(hardware).max_lanes if config.lanes == "auto" else int(config.lanes)
    num_lanes = min(max_lanes, -(-block_size(config) // count))
    is_packed = hw.choices(hardware).is_packed
    if count > 1:
        return executors.sharded(count, num_lanes, devices, is_packed)
    return executors.lanes(num_lanes, is_packed)


def num_devices(config: Config, hardware: hw.Hardware | None = None) -> int:
    """Returns how many devices share a cohort.

    Args:
        config: its `devices` is a number, or "auto": as `hardware.auto_devices`.
        hardware: defaults to `hardware.current()`.

    Raises:
        UsageError: for more devices than there are, or than clients in a cohort; for several CPU devices in double
            precision.
    """
    hardware = hardware or hw.current()
    available, size = hardware.num_devices, block_size(config)
    double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  jax adds it at run time
    if config.devices == "auto":
        return min(size, hw.auto_devices(config.model, double, hardware))
    wanted = int(config.devices)
    if wanted > 1 and double and not hw.choices(hardware).is_float64_safe_on_many_devices:
        raise UsageError(
            f"devices {wanted} of a CPU in double precision, where XLA's results were wrong; use --devices 1, "
            "or unset JAX_ENABLE_X64"
        )
    if wanted > available:
        raise UsageError(
            f"devices {wanted} of {available} {hardware.platform} device(s); use --devices auto"
            + (", or set JAX_NUM_CPU_DEVICES before jax starts" if hardware.is_cpu else "")
        )
    if wanted > size:
        unit = "a cohort of" if size == cohort_size(config) else "blocks of"
        raise UsageError(f"devices {wanted} for {unit} {size}; use --devices {size} or fewer")
    return wanted
