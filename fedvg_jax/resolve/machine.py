"""How the clients of a round share lanes and devices."""

from __future__ import annotations

import jax

from fedvg_jax.config import Config, client_chunk_size
from fedvg_jax.core.types import Executor, UsageError
from fedvg_jax.engine import executors
from fedvg_jax.host import hardware as hw
from fedvg_jax.models.networks import costs
from fedvg_jax.resolve.model import scoring_conv


def make_executor(config: Config) -> Executor:
    """Returns the executor for the settings `lanes` and `devices`.

    Args:
        config: its `lanes` is a number per device, or "auto": as `hardware.Choices.max_lanes`.
    """
    count = num_devices(config)
    chosen = hw.choices()
    max_lanes = chosen.max_lanes if config.lanes == "auto" else int(config.lanes)
    num_lanes = min(max_lanes, -(-client_chunk_size(config) // count))
    num_mapped = max(num_lanes, costs(config.model).clients_per_scoring_pass)
    if scoring_conv(config):
        num_mapped = 1
    if count > 1:
        return executors.sharded(count, num_lanes, num_mapped=num_mapped)
    return executors.lanes(num_lanes, num_mapped)


def num_devices(config: Config) -> int:
    """Returns how many devices share a cohort: at most one for each client.

    Args:
        config: its `devices` is a number, or "auto": as `hardware.auto_devices` in every process.

    Raises:
        UsageError: for more devices or processes than there are, or than clients in a cohort; for devices that are no
            multiple of the processes; for several CPU devices of a process in double precision.
    """
    hardware = hw.current()
    available, processes, size = (
        hardware.num_devices,
        hardware.num_processes,
        client_chunk_size(config),
    )
    double = bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]  jax adds it at run time
    most = processes * hw.auto_devices(costs(config.model).client_bytes, double)
    is_auto = config.devices == "auto"
    wanted = min(most, processes * -(-size // processes)) if is_auto else int(config.devices)
    if wanted > processes and double and not hw.choices().is_float64_safe_on_many_devices:
        raise UsageError(
            f"devices {wanted}: float64 on several CPU devices may be wrong; use --devices 1, or no JAX_ENABLE_X64"
        )
    if processes > size or (not is_auto and (wanted > min(available, size) or wanted % processes)):
        raise UsageError(
            f"devices {wanted}: jax has {available}, {processes} process(es) share them, and {size} clients are"
            " trained at a time; use --devices auto, or set JAX_NUM_CPU_DEVICES before jax starts"
        )
    return wanted
