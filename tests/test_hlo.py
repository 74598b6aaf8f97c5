"""Loops, kernels, bytes and operations of a program's text."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.targets import hlo
from fedvg_jax.core.types import UsageError

TEXT = """HloModule jit_f, is_scheduled=true

%rows (p.0: f32[64,8], p.1: s32[]) -> f32[1,8] {
  %p.0 = f32[64,8]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1,8]{1,0} dynamic-slice(%p.0, %p.1, %zero), dynamic_slice_sizes={1,8}
}

%gemm (a: f32[4,8], b: f32[8,16]) -> f32[4,16] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  ROOT %dot = f32[4,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (arg: (s32[], f32[64,8])) -> (s32[], f32[64,8]) {
  %arg = (s32[], f32[64,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %pool = f32[64,8]{1,0} get-tuple-element(%arg), index=1
  %row = f32[1,8]{1,0} fusion(%pool, %i), kind=kLoop, calls=%rows, metadata={op_name="jit(f)/steps/while/body/gather"}
  %again = s32[] copy(%i)
  ROOT %out = (s32[], f32[64,8]{1,0}) tuple(%again, %pool)
}

%condition (arg.1: (s32[], f32[64,8])) -> pred[] {
  %arg.1 = (s32[], f32[64,8]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%long (x.0: f32[4,8]) -> f32[4,8] {
  %x.0 = f32[4,8]{1,0} parameter(0)
  %first = f32[4,8]{1,0} copy(%x.0)
  ROOT %second = f32[4,8]{1,0} copy(%first)
}

%short (x.1: f32[4,8]) -> f32[4,8] {
  ROOT %x.1 = f32[4,8]{1,0} parameter(0)
}

ENTRY %main (x: f32[4,8], w: f32[8,16], n: (s32[], f32[64,8])) -> f32[4,16] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,16]{1,0} parameter(1)
  %n = (s32[], /*index=1*/f32[64,8]{1,0:T(8,128)}) parameter(2)
  %p = pred[] constant(true)
  %either = f32[4,8]{1,0} conditional(%p, %x, %x), true_computation=%short, false_computation=%long
  %counted = (s32[], f32[64,8]{1,0}) while(%n), condition=%condition, body=%body, STEPS
  %data = (s32[], f32[64,8]{1,0}) while(%counted), condition=%condition, body=%body, PASSES
  %sum = f32[4,8]{1,0} all-reduce(%either), replica_groups={}, to_apply=%short
  %bias = (f32[4,16]{1,0}, s8[0]{0}) custom-call(%sum, %w), custom_call_target="__cublas$gemm", GEMM
  ROOT %product = f32[4,16]{1,0} fusion(%sum, %w), kind=kCustom, calls=%gemm
}
"""

ATTRIBUTES = {
    "STEPS": 'metadata={op_name="jit(f)/steps/while"}, backend_config={"known_trip_count":{"n":"3"}}',
    "PASSES": 'metadata={op_name="jit(f)/vmap(passes)/while"}',
    "GEMM": 'backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"lhs_batch_dimensions":[]}}',
}


@pytest.fixture(scope="module")
def program():
    text = TEXT
    for name, attributes in ATTRIBUTES.items():
        text = text.replace(f", {name}\n", f", {attributes}\n")
    return hlo.sections(hlo.parse(text))


def test_loops_have_their_names_and_trip_counts(program):
    assert [(loop.scope, loop.trips) for loop in program.sections] == [
        ("jit(f)/steps/while", 3),
        ("jit(f)/vmap(passes)/while", None),
    ]
    assert hlo.loops(program, "steps") == [program.sections[0]] and hlo.loops(program, "passes")
    assert not hlo.loops(program, "step")


def test_a_conditional_counts_as_its_longer_branch(program):
    assert [kernel.name for kernel in program.kernels] == ["first", "second", "sum", "bias", "product"]
    assert [kernel.is_copy for kernel in program.kernels] == [True, True, False, False, False]
    assert [kernel.name for kernel in program.kernels if kernel.is_collective] == ["sum"]


def test_kernels_of_a_counted_loop_are_launched_in_every_iteration(program):
    launches = {kernel.name: 0 for _, kernel in hlo.all_kernels(program)}
    for count, kernel in hlo.all_kernels(program):
        launches[kernel.name] += count
    assert launches == {"first": 1, "second": 1, "sum": 1, "bias": 1, "product": 1, "row": 4, "again": 4}


def test_a_slice_of_an_operand_counts_as_what_it_reads(program):
    row = program.sections[0].kernels[0]
    assert row.bytes == (8 + 8) * 4 + 4  # one row of 64 read and written, and its number


def test_a_matmul_has_two_operations_per_product(program):
    flops = {kernel.name: kernel.flops for kernel in program.kernels}
    assert flops["product"] == flops["bias"] == 2 * 4 * 8 * 16 and flops["first"] == 0


@pytest.mark.parametrize(
    ("target", "shapes", "result"),
    [
        ("Forward", ("f32[2,9,9,3]", "f32[3,3,3,5]"), "f32[2,9,9,5]"),
        ("BackwardInput", ("f32[2,9,9,5]", "f32[3,3,3,5]"), "f32[2,9,9,3]"),
        ("BackwardFilter", ("f32[2,9,9,3]", "f32[2,9,9,5]"), "f32[3,3,3,5]"),
    ],
)
def test_a_convolution_and_its_gradients_have_the_same_operations(target, shapes, result):
    lines = ["ENTRY %main (a: f32[1]) -> f32[1] {", *(f"  %p{i} = {s} parameter({i})" for i, s in enumerate(shapes))]
    call = f'custom_call_target="__cudnn$conv{target}", window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f'
    lines += [f"  ROOT %y = ({result}{{3,2,1,0}}, u8[0]{{0}}) custom-call(%p0, %p1), {call}", "}"]
    (kernel,) = hlo.sections(hlo.parse("\n".join(lines))).kernels
    assert kernel.flops == 2 * (2 * 9 * 9 * 5) * (3 * 3 * 3)


def test_the_loops_of_a_program_of_jax_are_read():
    def f(x, n):
        with jax.named_scope("outer"):
            return lax.fori_loop(0, n, lambda i, y: lax.fori_loop(0, 3, lambda j, z: jnp.sin(z @ x), y), x)

    text = jax.jit(f).lower(jnp.ones((4, 4)), 5).compile().as_text()
    (outer,) = hlo.loops(hlo.sections(hlo.parse(text)), "outer")
    assert outer.trips is None and [inner.trips for inner in outer.sections] == [3]
    assert sum(count * kernel.flops for count, kernel in hlo.all_kernels(outer)) == 3 * 2 * 4**3


def test_text_that_is_no_program_is_refused():
    with pytest.raises(UsageError, match="as_text"):
        hlo.parse("no program")
