"""What the devices of a compiled round exchange."""

import math
import re
from collections import Counter

from fedvg_jax.core import tree

KINDS = "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|collective-broadcast"
INSTRUCTION = re.compile(
    rf"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ({KINDS}|[\w-]+)(?:-start)?\((.*?)\)(.*)", re.M
)
BYTES = {"f32": 4, "s32": 4, "u32": 4, "pred": 1, "bf16": 2, "f64": 8}


def of_round(text):
    """Returns kind of collective -> bytes that one device puts in, from the text of a program with one loop of rounds.

    Each stands once in the body of the loop, so that its instruction is one exchange of a round.
    """
    instructions = INSTRUCTION.findall(text)
    shapes = {name: shape for name, shape, *_ in instructions}
    size = Counter()
    for _, _, kind, operands, attributes in instructions:
        if re.fullmatch(KINDS, kind) and f"/{tree.ROUNDS}/while/body/" in attributes:
            names = re.findall(r"[\w.-]+", operands)
            size[kind] += sum(num_bytes(shapes[name]) for name in names if name in shapes)
    return size


def num_bytes(shape):
    """Returns the bytes of a shape, or of all members of a tuple."""
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape)
    size = 0
    for kind, dims in arrays:
        size += BYTES[kind] * math.prod(int(d) for d in dims.split(",") if d)
    return size
