"""Reads the text of a compiled program: its loops, and the kernels of each. No jax.

A kernel is an instruction that a device runs: a fusion, a library call, a copy or a collective. Inside a loop it is
launched once per iteration.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from fedvg_jax.core.types import UsageError

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute", "collective-broadcast")

WITHOUT_KERNEL = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
        *("opt-barrier", "add-dependency", "domain", "while", "conditional", "call", "async-start", "async-update"),
        *("async-done", "copy-done", "send-done", "recv-done"),
        *(f"{name}-done" for name in COLLECTIVES),
    }
)
"""Operations that launch nothing themselves."""

MARKERS = ("Sharding", "AllocateBuffer", "SPMD", "annotate")
"""Parts of the names of library calls that launch nothing."""

_BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")


class Kernel(NamedTuple):
    """One launch."""

    opcode: str
    shape: str
    """Its result, e.g. "f32[4,10]{1,0}", or a tuple of those."""
    scope: str
    """jax's path of the operation, e.g. "jit(chunk)/rounds/while/body/add"."""
    operand_bytes: int

    @property
    def is_copy(self) -> bool:
        """Whether it only copies."""
        return self.opcode in ("copy", "copy-start")

    @property
    def is_collective(self) -> bool:
        """Whether devices communicate in it."""
        return self.opcode.removesuffix("-start") in COLLECTIVES


class Section(NamedTuple):
    """One iteration of a loop, or the whole program."""

    scope: str
    """jax's path of the loop."""
    trips: int | None
    """Iterations; None where they depend on data."""
    kernels: tuple[Kernel, ...]
    """Those outside of inner loops; of a conditional, those of its longer branch."""
    sections: tuple[Section, ...]
    """Inner loops."""


def read(text: str) -> Section:
    """Returns the program that XLA prints as `text`, as a tree of loops.

    >>> lines = ["ENTRY %main (x: f32[2]) -> f32[2] {", "  ROOT %y = f32[2]{0} negate(%x)", "}"]
    >>> read(chr(10).join(lines)).kernels[0].opcode
    'negate'
    """
    computations, entry, name = {}, "", ""
    for line in text.splitlines():
        if match := _HEADER.match(line):
            name, lines = match[2], []
            computations[name] = lines
            entry = name if match[1] else entry
        elif line == "}":
            name = ""
        elif name and (match := _INSTRUCTION.match(line)):
            lines.append((match[1], *_split(match[2])))
    if not entry:
        raise UsageError("this text is no compiled program; expected the as_text() of jax's compiled function")
    return _section(computations, entry, "", 1)


def walk(section: Section) -> Iterator[Section]:
    """Yields a section and all loops in it."""
    yield section
    for inner in section.sections:
        yield from walk(inner)


def loops(section: Section, scope: str) -> list[Section]:
    """Returns the loops that jax named `scope`, e.g. by `jax.named_scope`."""
    return [inner for inner in walk(section) if re.search(rf"(^|[/(]){re.escape(scope)}\)*/while$", inner.scope)]


def all_kernels(section: Section) -> list[tuple[int, Kernel]]:
    """Returns every kernel of one iteration with the number of its launches; loops over data count once."""
    launched = [(1, kernel) for kernel in section.kernels]
    for inner in section.sections:
        launched += [((inner.trips or 1) * count, kernel) for count, kernel in all_kernels(inner)]
    return launched


def num_bytes(shape: str) -> int:
    """Returns the bytes of a shape, or of all members of a tuple; an s4 has half a byte.

    >>> num_bytes("(f32[4,10]{1,0}, s32[], pred[3]{0})")
    167
    """
    size = 0.0
    for dtype, dims in _ARRAY.findall(shape):
        bits = re.match(r"[a-z]+(\d+)", dtype)
        width = _BYTES[dtype] if dtype in _BYTES else int(bits[1]) / 8 if bits else 1
        size += width * math.prod(int(d) for d in dims.split(",") if d)
    return int(size)


def _split(rest: str) -> tuple[str, str, list[str], str]:
    """Returns shape, opcode, operands and attributes of what follows an instruction's name."""
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode = rest.partition("(")[0]
    end = _closing(rest, len(opcode))
    listed = rest[len(opcode) : end]
    return shape, opcode, re.findall(r"%([\w.-]+)", listed) or re.findall(r"[\w.-]+", listed), rest[end:]


def _closing(text: str, begin: int) -> int:
    """Returns the position after the bracket that closes the one at `begin`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, begin):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return len(text)


def _section(computations: dict[str, list], computation: str, scope: str, trips: int | None) -> Section:
    kernels: list[Kernel] = []
    inner: list[Section] = []
    shapes = {name: shape for name, shape, *_ in computations[computation]}

    def sections_of(pattern: str, attributes: str) -> list[Section]:
        """Returns the computations that attributes name, as sections."""
        listed = re.search(pattern, attributes)
        names = re.findall(r"[\w.-]+", listed[1]) if listed else []
        return [_section(computations, name, "", 1) for name in names if name in computations]

    for _, shape, opcode, operands, attributes in computations[computation]:
        path = re.search(r'op_name="([^"]*)"', attributes)
        called: list[Section] = []
        if opcode == "while":
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', attributes)
            (body,) = sections_of(r"\bbody=%?([\w.-]+)", attributes)
            inner.append(body._replace(scope=path[1] if path else "", trips=int(count[1]) if count else None))
        elif opcode == "conditional":
            sides = [sections_of(rf"\b{side}_computation=%?([\w.-]+)", attributes) for side in ("true", "false")]
            called = [*sections_of(r"branch_computations=\{([^}]*)\}", attributes), *itertools.chain(*sides)]
        elif opcode in ("call", "async-start"):
            called = sections_of(r"\b(?:to_apply|calls)=%?([\w.-]+)", attributes)
        if called:
            longest = max(called, key=lambda branch: len(all_kernels(branch)))
            kernels += longest.kernels
            inner += longest.sections
        elif opcode not in WITHOUT_KERNEL and not (opcode == "custom-call" and any(m in attributes for m in MARKERS)):
            size = sum(num_bytes(shapes.get(name, "")) for name in operands)
            kernels.append(Kernel(opcode, shape, path[1] if path else "", size))
    return Section(scope, trips, tuple(kernels), tuple(inner))
