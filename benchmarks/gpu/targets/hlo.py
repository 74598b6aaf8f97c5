"""Reads the text of a compiled program: its loops, and the kernels, bytes and matmul operations of each. No jax.

A kernel is an instruction that a device runs: a fusion, a library call, a copy or a collective. Inside a loop it is
launched once per iteration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
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

_BYTES = {"pred": 1, "token": 0, "opaque": 0, "c64": 8, "c128": 16}
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (.*)$")
_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}
"""Operation that updates its first operand in place -> position of the operand that it writes."""


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    shape: str
    """Its result, e.g. "f32[4,10]{1,0}", or a tuple of those."""
    operands: tuple[str, ...]
    attributes: str
    """The rest of the line."""
    is_root: bool


class Module(NamedTuple):
    """A compiled program."""

    computations: Mapping[str, tuple[Instruction, ...]]
    entry: str


class Kernel(NamedTuple):
    """One launch."""

    name: str
    opcode: str
    shape: str
    scope: str
    """jax's path of the operation, e.g. "jit(chunk)/rounds/while/body/add"."""
    bytes: int
    """Bytes that it reads and writes, as far as slices show what is read."""
    flops: float
    """Operations of its matmuls and convolutions; 0 for others."""

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


def parse(text: str) -> Module:
    """Returns the program that XLA prints as `text`.

    >>> lines = ["ENTRY %main (x: f32[2]) -> f32[2] {", "  ROOT %y = f32[2]{0} negate(%x)", "}"]
    >>> module = parse(chr(10).join(lines))
    >>> module.computations["main"][0].opcode
    'negate'
    """
    computations, entry, lines, name = {}, "", [], ""
    for line in text.splitlines():
        if match := _HEADER.match(line):
            name, lines = match[2], []
            entry = name if match[1] else entry
        elif line == "}" and name:
            computations[name], name = tuple(lines), ""
        elif name and (match := _INSTRUCTION.match(line)):
            lines.append(_instruction(match[2], match[3], bool(match[1])))
    if not entry:
        raise UsageError("this text is no compiled program; expected the as_text() of jax's compiled function")
    return Module(computations, entry)


def sections(module: Module) -> Section:
    """Returns the program as a tree of loops."""
    return _section(module, module.entry, "", 1)


def walk(section: Section) -> Iterator[Section]:
    """Yields a section and all loops in it."""
    yield section
    for inner in section.sections:
        yield from walk(inner)


def loops(section: Section, scope: str) -> list[Section]:
    """Returns the loops that jax named `scope`, e.g. by `jax.named_scope`."""
    return [inner for inner in walk(section) if is_loop(inner, scope)]


def is_loop(section: Section, scope: str) -> bool:
    """Returns whether a section is a loop that jax named `scope`."""
    return re.search(rf"(^|[/(]){re.escape(scope)}\)*/while$", section.scope) is not None


def all_kernels(section: Section) -> list[tuple[int, Kernel]]:
    """Returns every kernel of one iteration with the number of its launches; loops over data count once."""
    launched = [(1, kernel) for kernel in section.kernels]
    for inner in section.sections:
        launched += [((inner.trips or 1) * count, kernel) for count, kernel in all_kernels(inner)]
    return launched


def num_bytes(shape: str) -> int:
    """Returns the bytes of a shape, or of all members of a tuple.

    >>> num_bytes("(f32[4,10]{1,0}, s32[], pred[3]{0})")
    167
    """
    return int(sum(math.prod(dims) * _width(dtype) for dtype, dims in _arrays(shape)))


def arrays(shape: str) -> list[str]:
    """Returns the members of a shape without their layouts, e.g. ["f32[4,10]", "s32[]"]."""
    return [f"{dtype}[{dims}]" for dtype, dims in _ARRAY.findall(shape)]


# --- reading lines


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    end = _closing(rest, len(opcode))
    operands = tuple(re.findall(r"%([\w.-]+)", rest[len(opcode) : end]))
    if not operands:  # printed without percent signs
        operands = tuple(re.findall(r"[\w.-]+", rest[len(opcode) : end]))
    return Instruction(name, opcode, shape, operands, rest[end:], is_root)


def _closing(text: str, begin: int) -> int:
    """Returns the position after the bracket that closes the one at `begin`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, begin):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.end()
    return len(text)


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    return [(dtype, [int(d) for d in dims.split(",") if d]) for dtype, dims in _ARRAY.findall(shape)]


def _width(dtype: str) -> float:
    """Returns the bytes of one element; s4 has half a byte."""
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return _BYTES[dtype] if dtype in _BYTES else int(bits[1]) / 8 if bits else 1


def _attribute(instruction: Instruction, name: str) -> str | None:
    match = re.search(rf"\b{name}=%?([\w.-]+)", instruction.attributes)
    return match[1] if match else None


def _scope(instruction: Instruction) -> str:
    match = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return match[1] if match else ""


def _branches(instruction: Instruction) -> list[str]:
    listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    if listed:
        return re.findall(r"%?([\w.-]+)", listed[1])
    names = (_attribute(instruction, f"{side}_computation") for side in ("true", "false"))
    return [name for name in names if name]


# --- loops and kernels


def _section(module: Module, computation: str, scope: str, trips: int | None) -> Section:
    kernels: list[Kernel] = []
    inner: list[Section] = []
    shapes = {i.name: i.shape for i in module.computations[computation]}
    for instruction in module.computations[computation]:
        if instruction.opcode == "while":
            count = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.attributes)
            body = _attribute(instruction, "body") or ""
            inner.append(_section(module, body, _scope(instruction), int(count[1]) if count else None))
        elif nested := _called(module, instruction):
            kernels += nested.kernels
            inner += nested.sections
        elif instruction.opcode not in WITHOUT_KERNEL and not _is_marker(instruction):
            kernels.append(_kernel(module, instruction, shapes))
    return Section(scope, trips, tuple(kernels), tuple(inner))


def _called(module: Module, instruction: Instruction) -> Section | None:
    """Returns what a call runs, of a conditional the branch with the most kernels; None for other instructions."""
    if instruction.opcode == "conditional":
        branches = [_section(module, name, "", 1) for name in _branches(instruction)]
        return max(branches, key=lambda branch: len(all_kernels(branch)), default=None)
    if instruction.opcode in ("call", "async-start"):
        name = _attribute(instruction, "to_apply") or _attribute(instruction, "calls") or ""
        return _section(module, name, "", 1) if name in module.computations else None
    return None


def _is_marker(instruction: Instruction) -> bool:
    markers = ("Sharding", "AllocateBuffer", "SPMD", "annotate")
    return instruction.opcode == "custom-call" and any(name in instruction.attributes for name in markers)


def _kernel(module: Module, instruction: Instruction, shapes: Mapping[str, str]) -> Kernel:
    operands = [shapes.get(name, "") for name in instruction.operands]
    body = module.computations.get(_attribute(instruction, "calls") or "", ())
    if instruction.opcode == "fusion" and body:
        size = _fusion_bytes(body, instruction, operands)
    elif instruction.opcode in ("dynamic-slice", "gather", "slice"):
        size = 2 * num_bytes(instruction.shape)
    elif instruction.opcode == "dynamic-update-slice":
        size = 2 * num_bytes(operands[1])
    elif instruction.opcode == "custom-call":  # a library's workspace is a tuple's last member
        results = arrays(instruction.shape)
        size = sum(map(num_bytes, results[:-1] if len(results) > 1 else results)) + sum(map(num_bytes, operands))
    else:
        size = num_bytes(instruction.shape) + sum(map(num_bytes, operands))
    flops, scope = _matmuls(module, instruction, operands), _scope(instruction)
    return Kernel(instruction.name, instruction.opcode, instruction.shape, scope, int(size), flops)


def _fusion_bytes(body: tuple[Instruction, ...], fusion: Instruction, operands: list[str]) -> int:
    """Returns the bytes of a fusion: slices of an operand count as what they read, updates as what they write."""
    users: dict[str, list[Instruction]] = {}
    for instruction in body:
        for name in instruction.operands:
            users.setdefault(name, []).append(instruction)
    parameters = {_position(i): i for i in body if i.opcode == "parameter"}
    size = 0
    for position, shape in enumerate(operands):
        parameter = parameters.get(position)
        size += num_bytes(shape) if parameter is None else _bytes_read(parameter, users, num_bytes(shape))
    by_name = {i.name: i for i in body}
    updates = [i for i in body if i.opcode in _IN_PLACE]
    if not updates:
        return size + num_bytes(fusion.shape)
    values = [i.operands[_IN_PLACE[i.opcode]] for i in updates]
    written = sum(num_bytes(by_name[name].shape) for name in values if name in by_name)
    return size + written + max(0, num_bytes(fusion.shape) - sum(num_bytes(i.shape) for i in updates))


def _position(parameter: Instruction) -> int:
    return int(parameter.operands[0]) if parameter.operands else 0


def _bytes_read(value: Instruction, users: Mapping[str, list[Instruction]], most: int) -> int:
    """Returns the bytes that a fusion reads of one of its values."""
    size = 0
    if not users.get(value.name):
        return most
    for user in users.get(value.name, []):
        is_source = user.operands[0] == value.name
        if user.opcode in ("dynamic-slice", "slice", "gather") and is_source:
            size += _bytes_read(user, users, num_bytes(user.shape))  # of a slice of a slice only that
        elif user.opcode in _IN_PLACE and is_source:
            continue  # in place
        elif user.opcode in ("bitcast", "reshape"):
            size += _bytes_read(user, users, most)
        else:
            return most
    return min(size, most)


# --- matmuls


def _matmuls(module: Module, instruction: Instruction, operands: list[str]) -> float:
    """Returns the operations of all matmuls of a kernel."""
    if instruction.opcode in ("dot", "convolution", "custom-call"):
        return _flops(instruction, operands)
    body = module.computations.get(_attribute(instruction, "calls") or "", ())
    shapes = {i.name: i.shape for i in body}
    return sum(_matmuls(module, inner, [shapes.get(n, "") for n in inner.operands]) for inner in body)


def _flops(instruction: Instruction, operands: list[str]) -> float:
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    if instruction.opcode == "dot":
        contracted = _dimensions(operands[0], instruction, "lhs_contracting_dims")
        return 2.0 * _count(instruction.shape) * contracted
    if instruction.opcode == "custom-call" and target and "cublas" in target[1]:
        batch = re.search(r'lhs_batch_dimensions":\[([^\]]*)\]', instruction.attributes)
        dims = [int(d) for d in re.findall(r"\d+", batch[1])] if batch else []
        shape = _arrays(operands[0])[0][1]
        groups = math.prod(shape[d] for d in dims)
        return 2.0 * math.sqrt(math.prod(_count(s) for s in (*operands[:2], instruction.shape)) / groups)
    if "dim_labels=" in instruction.attributes:
        return _convolution_flops(instruction, operands)
    return 0.0


def _convolution_flops(instruction: Instruction, operands: list[str]) -> float:
    """Returns 2 |output| |kernel| / output channels, whichever of the three is the result."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if not labels:
        return 0.0
    arrays = [_arrays(shape)[0][1] for shape in (*operands[:2], instruction.shape)]
    by_role = {"images": arrays[0], "kernel": arrays[1], "output": arrays[2]}
    if "BackwardInput" in instruction.attributes:
        by_role = {"images": arrays[2], "kernel": arrays[1], "output": arrays[0]}
    elif "BackwardFilter" in instruction.attributes:
        by_role = {"images": arrays[0], "kernel": arrays[2], "output": arrays[1]}
    channels = by_role["kernel"][labels[2].index("o")] if "o" in labels[2] else 1
    return 2.0 * math.prod(by_role["output"]) * math.prod(by_role["kernel"]) / max(1, channels)


def _dimensions(shape: str, instruction: Instruction, name: str) -> int:
    listed = re.search(rf"{name}=\{{([\d,]*)\}}", instruction.attributes)
    dims = _arrays(shape)[0][1] if _arrays(shape) else []
    return math.prod(dims[int(d)] for d in listed[1].split(",") if d) if listed else 1


def _count(shape: str) -> int:
    arrays = _arrays(shape)
    return math.prod(arrays[0][1]) if arrays else 1
