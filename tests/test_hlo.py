"""Loops, kernels, bytes and operations of a program's text."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.targets import hlo


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
