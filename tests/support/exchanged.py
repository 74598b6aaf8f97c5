"""What the devices of a compiled round exchange."""

from collections import Counter

from benchmarks.gpu.targets import hlo
from fedvg_jax.core import scopes


def of_round(text):
    """Returns kind -> launches, and kind -> bytes that one device puts in, of a round of a program's text."""
    launches, size = Counter(), Counter()
    rounds = hlo.loops(hlo.read(text), scopes.ROUNDS)[0]
    for count, kernel in hlo.all_kernels(rounds):
        if kernel.is_collective:
            kind = kernel.opcode.removesuffix("-start")
            launches[kind] += count
            size[kind] += count * kernel.operand_bytes
    return launches, size
