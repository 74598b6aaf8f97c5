"""Who trains where: lanes on a device, and the devices that share a cohort."""

from __future__ import annotations

import math

import jax

from fedvg_jax.config import Config, block_size, cohort_size
from fedvg_jax.core.types import Executor, UsageError
from fedvg_jax.data import arrays
from fedvg_jax.engine import executors

A_CLIENT_EACH = {"lenet5": 0, "cnn": 0, "resnet18": 0, "vit_s16": 640 * 2**20}
"""Models whose rounds a CPU does faster with a client on each core than with one client on all of them -> bytes that
a client takes in training; 0 where they are few."""

SHARE_OF_MEMORY = 0.5
"""What clients in training may take of a machine's memory together, where the number of devices is ours to choose."""


def make_executor(config: Config) -> Executor:
    """`lanes`: a number, all, or auto: one lane on the CPU, up to four elsewhere; on every device that takes part."""
    if config.lanes == "all":
        return executors.vmapped()
    devices = num_devices(config)
    automatic = 1 if jax.default_backend() == "cpu" else 4
    wanted = automatic if config.lanes == "auto" else int(config.lanes)
    num_lanes = min(wanted, -(-block_size(config) // devices))
    return executors.sharded(devices, num_lanes) if devices > 1 else executors.lanes(num_lanes)


def num_devices(config: Config) -> int:
    """Devices that share a cohort; auto: all of them, but of a CPU's only where a client on each core is faster than
    one on all cores, as many as its memory holds, and one in double precision.

    Raises:
        UsageError: for more devices than there are, or than clients in a cohort; for several of a CPU in double
            precision.
    """
    there, size, on_cpu = len(jax.devices()), block_size(config), jax.default_backend() == "cpu"
    # jax 0.10.2: two CPU devices at work at once gave gradients off by 1e-3 now and then, in float64 only
    unsafe = on_cpu and jax.config.jax_enable_x64
    if config.devices == "auto":
        if not on_cpu:
            return min(there, size)
        pays = config.model in A_CLIENT_EACH and not unsafe
        return min(there, size, _fitting(config)) if pays else 1
    wanted = int(config.devices)
    if wanted > 1 and unsafe:
        raise UsageError(
            f"devices {wanted} of a CPU in double precision, where XLA's results were wrong; use --devices 1, "
            "or unset JAX_ENABLE_X64"
        )
    if wanted > there:
        raise UsageError(
            f"devices {wanted} of {there} {jax.default_backend()} device(s); use --devices auto"
            + (", or set JAX_NUM_CPU_DEVICES before jax starts" if on_cpu else "")
        )
    if wanted > size:
        held = "a cohort of" if size == cohort_size(config) else "blocks of"
        raise UsageError(f"devices {wanted} for {held} {size}; use --devices {size} or fewer")
    return wanted


def _fitting(config: Config) -> int:
    """Clients that may train at once within `SHARE_OF_MEMORY`."""
    each, memory = A_CLIENT_EACH[config.model], arrays.memory()
    return max(1, int(SHARE_OF_MEMORY * memory / each)) if each and math.isfinite(memory) else len(jax.devices())
