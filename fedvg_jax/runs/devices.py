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
    config: Config,
    hardware: hw.Hardware | None = None,
    devices: Sequence[Any] | None = None,
) -> Executor:
    """Returns the executor for the settings `lanes` and `devices`.

    Args:
        config: its `lanes` is a number per device, "all", or "auto": as `hardware.Choices.max_lanes`.
        hardware: defaults to `hardware.current()`.
        devices: jax's devices of that hardware; defaults to those of all processes.
    """
    count = num_devices(config, hardware)
    if config.lanes == "all":
        return executors.vmapped()
    chosen = hw.choices(hardware)
    max_lanes = chosen.max_lanes if config.lanes == "auto" else int(config.lanes)
    num_lanes = min(max_lanes, -(-block_size(config) // count))
    if count > 1:
        return executors.sharded(count, num_lanes, devices, chosen.is_packed)
    return executors.lanes(num_lanes, chosen.is_packed)


def num_devices(config: Config, hardware: hw.Hardware | None = None) -> int:
    """Returns how many devices share a cohort: at most one for each client.

    Args:
        config: its `devices` is a number, or "auto": as `hardware.auto_devices` in every process.
        hardware: defaults to `hardware.current()`.

    Raises:
        UsageError: for more devices or processes than there are, or than clients in a cohort; for devices that are no
            multiple of the processes; for several CPU devices of a process in double precision.
    """
    hardware = hardware or hw.current()
    available, processes, size = hardware.num_devices, hardware.num_processes, block_size(config)
    double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  jax adds it at run time
    most = processes * hw.auto_devices(config.model, double, hardware)
    _check_processes(config, processes, size)
    if config.devices == "auto":
        return min(most, processes * -(-size // processes))
    wanted = int(config.devices)
    if wanted > processes and double and not hw.choices(hardware).is_float64_safe_on_many_devices:
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
        raise UsageError(f"devices {wanted} for {_unit(config, size)}; use --devices {size} or fewer")
    return wanted


def _check_processes(config: Config, processes: int, size: int) -> None:
    """Raises UsageError for settings that several processes cannot share."""
    if processes == 1:
        return
    if config.lanes == "all":
        raise UsageError(f"lanes all is one vmap on one device; got {processes} processes; use --lanes auto")
    if processes > size:
        raise UsageError(f"{processes} processes for {_unit(config, size)}; start {size} or fewer")
    if config.devices != "auto" and int(config.devices) % processes:
        raise UsageError(f"devices {config.devices} for {processes} processes; use a multiple of {processes}")


def _unit(config: Config, size: int) -> str:
    """Returns "a cohort of 4" or "blocks of 4"."""
    return f"{'a cohort' if size == cohort_size(config) else 'blocks'} of {size}"
