"""The hardware as a value, and the table of the choices it calls for.

Every choice that depends on the device is a field of `Choices`, with its reason and its measurement. Programs are built
and traced for the hardware of this process, or for the one that `assumed` sets:

    >>> with assumed(Hardware("gpu", "NVIDIA H100", num_devices=8, cores=16, memory_bytes=None)):
    ...     choices().layout, choices().max_lanes
    ('images_first', 4)

jax is imported by `current` only, so packages without jax may import this module.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import importlib.util
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SMALL_IMAGE_PIXELS = 64 * 64
"""Largest height x width of a small image, for `--conv auto`."""

MEMORY_SHARE = 0.5
"""Fraction of the memory that clients in training may use together, where `client_bytes` limits the devices."""


class Hardware(NamedTuple):
    """The devices that jax computes on, and their host."""

    platform: str
    """jax's name of the back end: "cpu", "gpu" or "tpu"."""
    kind: str
    """Name of the device model, e.g. "NVIDIA H100 80GB HBM3"."""
    num_devices: int
    """Devices of that platform; of a CPU, the virtual devices that jax was started with."""
    cores: int
    """CPU cores that this process may use."""
    memory_bytes: int | None
    """Memory of one accelerator, or of the whole host where the platform is a CPU; None where it is unknown."""
    num_processes: int = 1
    """Processes that share the run, one on each host; each has an equal part of the devices."""

    @property
    def is_cpu(self) -> bool:
        """Whether the devices are cores of the host."""
        return self.platform == "cpu"


class Choices(NamedTuple):
    """What one platform calls for, where a setting is `auto` or there is no setting."""

    layout: str
    """Memory layout of convolutions of few channels (`--conv auto`): "images_last" or "images_first".

    XLA's CPU back end vectorises the innermost axis. 6 to 64 channels leave its vectors partly empty, the images of a
    minibatch fill them. Accelerators tile channels themselves."""
    small_image_conv: str
    """Convolution of images of at most `SMALL_IMAGE_PIXELS` (`--conv auto`), by its value of `--conv`.

    XLA's CPU back end runs the gradients of its convolution 12 to 28 times slower inside a loop. Batched over
    clients, XLA's convolution becomes a grouped one, which is slow on every platform. Patches and a matmul avoid both:
    a client's step of LeNet5 takes 0.23 ms on an H200, 0.31 ms by XLA's own, and 0.10 and 0.19 ms on four lanes.
    Winograd's saving of products was measured on CPUs only."""
    large_image_conv: str
    """Convolution of larger images. On an accelerator the memory traffic of patches outweighs what the matmul gains."""
    scoring_conv: str | None
    """Convolution of scoring passes, one client after the other, and of evaluations (`--conv auto`); None: as in
    training, for as many clients as there are lanes.

    Alone, a client's convolution is not grouped, and "lax" writes no patches: the patches of 1,024 images bound
    scoring on an H200, at 1.8 of the 2.4 TB/s of a copy. `python -m benchmarks.gpu` times it; no GPU has yet."""
    fusion_barriers: bool
    """Whether `models.layers.fusion_barrier` keeps XLA from recomputing a residual stream in every network block.

    XLA's CPU back end considers sums cheap and fuses them into every consumer."""
    max_lanes: int
    """Clients that train side by side on one device (`--lanes auto`).

    One lane saturates a CPU. A training step of ResNet-18 launches 274 to 278 GPU kernels with 4 lanes and with 10, so
    lanes share the launches: on an H200 a client's step takes 0.84 ms on one lane and 0.31 ms on four. More than four
    were not timed; where clients are unequal, the largest bounds how many are of use."""
    is_float64_safe_on_many_devices: bool
    """False where a cohort must not be shared in double precision.

    With jax 0.10.2, two CPU devices at work at once gave gradients of ResNet-18 that were off by 1e-3 and differed
    between calls, in float64 only. On a busy machine of two cores the same program gave the same bits in 8 calls of a
    training step and 6 of scoring, and smaller programs in hundreds, so the cause is unknown and may be a race.
    In jax's issue 39741 the results of a compiled CPU program differ between calls with more than one thread, in jax
    0.11.0. Double precision on a CPU is for comparisons, where one device suffices."""
    rows_per_scoring_pass: int
    """Validation rows that scoring evaluates at once, in whole groups of `batch_size` rows, at least one group, unless
    the model says otherwise. Only batch statistics look at groups, so weights are read once for all of them.

    A pass of ResNet-18 launches about as many GPU kernels for 1,024 rows as for 32. An H200 scores 109,000, 209,000 and
    269,000 rows of one client a second in passes of 256, 1,024 and 4,096, and 294,000 of four clients at 1,024. On a
    CPU, 2, 4 and 8 groups of 32 CIFAR-10 images take LeNet5 1.19, 1.24 and 1.8 times the CPU seconds of one by one (its
    activations leave the cache)."""
    values_per_feature_map: float
    """Most values of a feature map of four or more axes in a pass of a caller's task, which is scored like an MLP.

    Maps then stay in a core's cache. Scored in passes of 1 group of 32 instead of 5, two convolutions with 16 and 32
    channels on 16 x 16 x 3 take 0.85 times the CPU seconds a round, and the round compiles in 0.75 times."""
    values_per_scoring_pass: float
    """Most input values (pixels x channels) of a pass, which bound its activations.

    1,024 images of 32 x 32 for each of four lanes of ResNet-18 take 6 GB; images of 224 x 224 have 49 times as many."""
    weighted_mean: str
    """How `core.tree.weighted_sum` adds up the clients' models: "loop" over clients, or "product" of all at once.

    The loop reads every model once, without writing differences, which a CPU's memory rewards. On a GPU it is a host
    loop per tensor: 2,040 launches for ten clients of ResNet-18, where the product is one kernel per tensor."""
    norms: str
    """How the norms of all tensors of a gradient are computed: "by_tensor", or "segmented" over rows of all tensors.

    A CPU reduces one tensor after the other in its caches. On a GPU every tensor would be one or two launches."""
    is_packed: bool
    """Whether lanes load and store clients, and scores are collected, as one vector instead of tensor by tensor.

    On a GPU every tensor is a launch. With vectors, four lanes of ResNet-18 change clients in 23 kernels instead of
    124, and the rest of a round of ten clients has 389 kernels, 151 of them copies, instead of 833 and 383."""
    launch_graphs: str | None
    """What a GPU launches as CUDA graphs, by XLA's `xla_gpu_enable_command_buffer`, e.g. "FUSION,CUBLAS,WHILE"; "":
    nothing; None: XLA's default.

    A training step is bound by its launches: four lanes of ResNet-18 take 1.24 ms on an H200, and their bytes need
    about 0.35. `python -m benchmarks.gpu` times three values; no GPU has yet."""
    pool_share: float
    """Largest part of a device's memory that the pool of rows may take there (`--placement auto`).

    The rest is for models, gradients and activations; on a CPU also for the host's copy of the rows."""
    options_of_once: Mapping[str, int]
    """XLA's options for a program that runs once, such as the initialisation of a model.

    At LLVM's level 1 the program of ResNet-18 takes 4.7 CPU seconds to compile instead of 36 and gives the same bits.
    Level 0 gives others. Evaluations of a CNN would take 1.4 times as long at level 1."""


CPU = Choices(
    layout="images_last",
    small_image_conv="winograd",
    large_image_conv="winograd",
    scoring_conv=None,
    fusion_barriers=True,
    max_lanes=1,
    is_float64_safe_on_many_devices=False,
    rows_per_scoring_pass=1,
    values_per_feature_map=2**18,
    values_per_scoring_pass=math.inf,
    weighted_mean="loop",
    norms="by_tensor",
    is_packed=False,
    launch_graphs=None,
    pool_share=0.4,
    options_of_once={"xla_backend_optimization_level": 1},
)

ACCELERATOR = Choices(
    layout="images_first",
    small_image_conv="gemm",
    large_image_conv="lax",
    scoring_conv=None,
    fusion_barriers=False,
    max_lanes=4,
    is_float64_safe_on_many_devices=True,
    rows_per_scoring_pass=1024,
    values_per_feature_map=math.inf,
    values_per_scoring_pass=1024 * 32 * 32 * 3,
    weighted_mean="product",
    norms="segmented",
    is_packed=True,
    launch_graphs=None,
    pool_share=0.6,
    options_of_once={},
)
"""GPUs and TPUs."""


def choices() -> Choices:
    """Returns the choices that the `current` hardware calls for."""
    return CPU if current().is_cpu else ACCELERATOR


def compiler_options() -> dict[str, str] | None:
    """Returns the compiler options of the programs of a run; None for XLA's defaults."""
    graphs = choices().launch_graphs
    if graphs is None or current().platform != "gpu":
        return None
    return {"xla_gpu_enable_command_buffer": graphs}


def jit_once(function: Callable) -> Any:
    """Returns the function jitted for a single call outside of other programs, after a short compilation."""
    import jax

    return jax.jit(function, compiler_options=dict(choices().options_of_once) or None)


def auto_conv(num_pixels: int) -> str:
    """Returns the name of the convolution that `--conv auto` uses for images of that many pixels, height x width."""
    chosen = choices()
    return chosen.small_image_conv if num_pixels <= SMALL_IMAGE_PIXELS else chosen.large_image_conv


def auto_devices(client_bytes: int | None, double: bool) -> int:
    """Returns how many devices of a process `--devices auto` shares a cohort among.

    The size of the cohort may limit them further.

    Args:
        client_bytes: see `models.networks.Costs`.
        double: whether the run computes in float64.

    >>> with assumed(Hardware("cpu", "cpu", num_devices=8, cores=8, memory_bytes=8 * 2**30)):
    ...     [auto_devices(client_bytes, False) for client_bytes in (0, 640 * 2**20, None)]
    [8, 6, 1]
    """
    hardware = current()
    num_devices = hardware.num_devices // hardware.num_processes
    if client_bytes is None or (double and not choices().is_float64_safe_on_many_devices):
        return 1
    if not client_bytes or hardware.memory_bytes is None:
        return num_devices
    return min(num_devices, max(1, int(MEMORY_SHARE * hardware.memory_bytes / client_bytes)))


def auto_pool(num_bytes: int) -> str:
    """Returns where `--placement auto` keeps rows of so many bytes: "host" if they would fill too much of a "device".

    >>> with assumed(Hardware("gpu", "NVIDIA H100", num_devices=8, cores=16, memory_bytes=80 * 10**9)):
    ...     auto_pool(40 * 10**9), auto_pool(100 * 10**9)
    ('device', 'host')
    """
    memory = current().memory_bytes
    return "host" if memory is not None and num_bytes > choices().pool_share * memory else "device"


def groups_per_scoring_pass(group_rows: int, most_rows: int = 0, row_values: int = 1) -> int:
    """Returns how many validation groups of `group_rows` rows scoring evaluates at once.

    Args:
        group_rows: rows of one group, the run's `batch_size`.
        most_rows: of a pass, for the model; 0 for `Choices.rows_per_scoring_pass`.
        row_values: values of one row, e.g. height x width x channels of an image.

    >>> with assumed(Hardware("gpu", "NVIDIA H100", num_devices=1, cores=16, memory_bytes=None)):
    ...     [groups_per_scoring_pass(32, 0, side * side * 3) for side in (32, 64, 224)]
    [32, 8, 1]
    """
    chosen = choices()
    most_rows = most_rows or chosen.rows_per_scoring_pass
    return max(
        1, int(min(most_rows, chosen.values_per_scoring_pass / max(1, row_values))) // group_rows
    )


_assumed: contextvars.ContextVar[Hardware | None] = contextvars.ContextVar(
    "assumed hardware", default=None
)


@contextlib.contextmanager
def assumed(hardware: Hardware) -> Iterator[None]:
    """Sets what `current` returns within the context, in this thread, for programs of other machines.

    What jax has traced before keeps its choices: build the functions, and trace them, within one context.
    """
    token = _assumed.set(hardware)
    try:
        yield
    finally:
        _assumed.reset(token)


def current() -> Hardware:
    """Returns the hardware that is `assumed`, or else that of this process, which starts jax's back end."""
    return _assumed.get() or _of_this_process()


@functools.cache
def _of_this_process() -> Hardware:
    import jax

    platform, devices = jax.default_backend(), jax.devices()
    memory = (
        host_memory()
        if platform == "cpu"
        else (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    )
    return Hardware(
        platform, devices[0].device_kind, len(devices), num_cores(), memory, jax.process_count()
    )


def without_jax() -> Hardware | None:
    """Returns a CPU's hardware, which is known without jax; None if jax may find an accelerator."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    has_plugin = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    if platforms != "cpu" and (platforms or has_plugin):
        return None
    return Hardware("cpu", "", num_cores(), num_cores(), host_memory())


@contextlib.contextmanager
def single_lapack_thread() -> Iterator[None]:
    """Keeps LAPACK and BLAS to one thread in this process while open, where jax computes on the CPU.

    There XLA computes eigenvectors by SciPy's LAPACK. Its threads wait for each other by spinning, and beside other
    work each waits for one that has no core. On idle cores one thread is no slower for the matrices of networks.
    """
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1 if current().platform == "cpu" else None, "blas"):
        yield


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pauses Python's search for reference cycles within the context.

    The objects that imports and traces make live on. Searching them took 0.5 of the 2.9 CPU seconds of a start on the
    digits, and 1.4 of the 12 of ResNet-18.

    >>> with paused_gc():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def num_cores() -> int:
    """Returns how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory() -> int:
    """Returns the bytes of this host's memory, a container's limit where that is lower."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cgroup = Path("/sys/fs/cgroup/memory.max")
    text = cgroup.read_text(encoding="ascii").strip() if cgroup.is_file() else "max"
    return memory if text == "max" else min(memory, int(text))
