"""What becomes one kernel, what does not, and why; and that no value changes."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.ir.core import Function, Module
from anabranch.ir.mesh import Mesh
from anabranch.ir.ops import Compute, Fused, Return, Transfer
from anabranch.ir.parser import parse_module
from anabranch.ir.printer import print_module
from anabranch.ir.reference import evaluate, held
from anabranch.ir.types import is_float
from anabranch.ir.verifier import verify
from anabranch.lowering.fuse import Decision, fuse

NORM = """
  %t: f32[4, 6] = [i, s] sum[d < 16](%x[i, s, d])
  %u: f32[4, 6] = [i, s] %t[i, s] / 16.0
  %q: f32[4, 6] = [i, s] sum[d < 16]((%x[i, s, d] - %u[i, s]) * (%x[i, s, d] - %u[i, s]))
  %r: f32[4, 6] = [i, s] rsqrt(%q[i, s] / 16.0 + 0.00001)
  %h: f32[4, 6, 16] = [i, s, d] (%x[i, s, d] - %u[i, s]) * %r[i, s]
  %y: f32[4, 6, 16] = [i, s, d] %h[i, s, d] * %w[d] + %b[d]
"""
NORM_BACK = """
  %dw: f32[16] = [d] sum[i < 4, s < 6](%g[i, s, d] * %h[i, s, d])
  %db: f32[16] = [d] sum[i < 4, s < 6](%g[i, s, d])
  %dh: f32[4, 6, 16] = [i, s, d] %g[i, s, d] * %w[d]
  %a: f32[4, 6] = [i, s] sum[d < 16](%dh[i, s, d])
  %c: f32[4, 6] = [i, s] sum[d < 16](%dh[i, s, d] * %h[i, s, d])
  %dx: f32[4, 6, 16] = [i, s, d] %r[i, s] * \
(%dh[i, s, d] - %a[i, s] / 16.0 - %h[i, s, d] * %c[i, s] / 16.0)
"""
ENTROPY = """
  %m: f32[4, 6] = [i, s] max[v < 16](%x[i, s, v])
  %z: f32[4, 6] = [i, s] sum[v < 16](exp(%x[i, s, v] - %m[i, s]))
  %p: f32[4, 6] = [i, s] %x[i, s, check(%k[i, s], 16)]
  %y: f32[4, 6] = [i, s] log(%z[i, s]) + %m[i, s] - %p[i, s]
"""
ENTROPY_BACK = """
  %e: f32[4, 6, 16] = [i, s, v] where(%k[i, s] == v, %g[i, s], 0.0)
  %f: f32[4, 6, 16] = [i, s, v] %g[i, s] / %z[i, s] * exp(%x[i, s, v] - %m[i, s])
  %dx: f32[4, 6, 16] = [i, s, v] %f[i, s, v] - %e[i, s, v]
"""
ADAMW = """
  %n: f32[9, 7] = [i, j] 0.9 * %m[i, j] + 0.1 * %g[i, j]
  %o: f32[9, 7] = [i, j] 0.95 * %v[i, j] + 0.05 * %g[i, j] * %g[i, j]
  %a: f32[9, 7] = [i, j] %n[i, j] / %lr[]
  %c: f32[9, 7] = [i, j] sqrt(%o[i, j])
  %q: f32[9, 7] = [i, j] %p[i, j] - %a[i, j] / (%c[i, j] + 0.00000001)
"""


def module(arguments: str, body: str, results: str) -> Module:
    text = f"module phase=local mesh={{}}\n\nfunc @f({arguments}) {{{body}  return {results}\n}}\n"
    return parse_module(text)


def kernels(made: Module) -> list[list[str]]:
    """The names of the values that each kernel computes."""
    return [
        [o.result.name.split(".")[0] for o in op.region if isinstance(o, Compute)]
        if isinstance(op, Fused) else [r.name for r in op.results]
        for op in made.functions["f"].body if not isinstance(op, Return)
    ]


def fused(made: Module) -> tuple[list[list[str]], list[Decision]]:
    """The kernels after fusion, which must not have changed what is computed."""
    function = made.functions["f"]
    transfers = any(isinstance(op, Transfer) for op in function.body)
    data = arrays(function)
    before = [] if transfers else evaluate(function, data)
    log: list[Decision] = []
    fuse(made, log=log)
    verify(made)
    assert made.phase == "fused"
    if not transfers:
        for got, want in zip(evaluate(function, data), before, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return kernels(made), log


def arrays(function: Function) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [
        np.asarray(random.uniform(0.5, 1, v.type.shape)).astype(held(v.type.dtype))
        if is_float(v.type.dtype) else np.asarray(random.integers(0, 7, v.type.shape))
        for v in function.body.args
    ]


def test_layer_norm_is_one_kernel_forward() -> None:
    made = module("%x: f32[4, 6, 16], %w: f32[16], %b: f32[16]", NORM, "%y")
    assert fused(made)[0] == [["t", "u", "q", "r", "h", "y"]]


def test_layer_norm_is_two_kernels_backward() -> None:
    arguments = "%h: f32[4, 6, 16], %r: f32[4, 6], %w: f32[16], %g: f32[4, 6, 16]"
    made = module(arguments, NORM_BACK, "%dx, %dw, %db")
    assert fused(made)[0] == [["dw", "db"], ["dh", "a", "c", "dx"]]


def test_cross_entropy_is_one_kernel_each_way() -> None:
    forward = module("%x: f32[4, 6, 16], %k: i64[4, 6]", ENTROPY, "%y, %m, %z")
    assert fused(forward)[0] == [["m", "z", "p", "y"]]
    arguments = ("%x: f32[4, 6, 16], %k: i64[4, 6], %m: f32[4, 6], %z: f32[4, 6], "
                 "%g: f32[4, 6]")
    backward = module(arguments, ENTROPY_BACK, "%dx")
    assert fused(backward)[0] == [["e", "f", "dx"]]


def test_an_update_of_a_parameter_is_one_kernel() -> None:
    arguments = ('state %p: f32[9, 7], state %m: f32[9, 7], state %v: f32[9, 7], '
                 '%g: f32[9, 7], %lr: f32[]')
    made = module(arguments, ADAMW, '; state "p": %q, "m": %n, "v": %o')
    assert fused(made)[0] == [["n", "o", "a", "c", "q"]]


def test_a_contraction_stays_alone_between_its_neighbours() -> None:
    body = """
  %a: f32[5, 6] = [i, k] tanh(%x[i, k])
  %c: f32[5, 7] = [i, j] sum[k < 6](%a[i, k] * %w[k, j])
  %d: f32[5, 7] = [i, j] %c[i, j] + %b[j]
  %e: f32[5, 7] = [i, j] %d[i, j] * %d[i, j]
"""
    made = module("%x: f32[5, 6], %w: f32[6, 7], %b: f32[7]", body, "%e")
    assert fused(made)[0] == [["a"], ["c"], ["d", "e"]]


def test_a_column_sum_joins_what_makes_its_elements() -> None:
    body = """
  %d: f32[50, 7] = [i, j] %g[i, j] * exp(%x[i, j])
  %s: f32[7] = [j] sum[i < 50](%d[i, j])
"""
    made = module("%x: f32[50, 7], %g: f32[50, 7]", body, "%d, %s")
    assert fused(made)[0] == [["d", "s"]]


def test_elements_do_not_wait_for_a_sum_over_all_tiles() -> None:
    body = """
  %s: f32[] = [] sum[i < 50, j < 7](%x[i, j])
  %y: f32[50, 7] = [i, j] %x[i, j] / %s[]
"""
    got, log = fused(module("%x: f32[50, 7]", body, "%y"))
    assert got == [["s"], ["y"]]
    assert "elements would wait for a reduction over all tiles" in log[0].why
    assert str(log[0]).startswith("not fused: %s and %y:")


def test_a_state_that_is_overwritten_shares_no_kernel_with_a_reduction() -> None:
    body = """
  %d: f32[7] = [j] sum[i < 50](%g[i, j])
  %q: f32[7] = [j] %p[j] - %d[j]
"""
    got, log = fused(module("state %p: f32[7], %g: f32[50, 7]", body, '; state "p": %q'))
    assert got == [["d"], ["q"]]
    assert log[0].why == "a state could not be overwritten in place"


def test_merging_never_makes_a_cycle() -> None:
    """y and z could share x, but the contraction stands between them."""
    body = """
  %y: f32[6, 6] = [i, j] tanh(%x[i, j])
  %c: f32[6, 6] = [i, j] sum[k < 6](%y[i, k] * %x[k, j])
  %z: f32[6, 6] = [i, j] %x[i, j] + %y[i, j] * %c[i, j]
"""
    got, log = fused(module("%x: f32[6, 6]", body, "%z"))
    assert got == [["y"], ["c"], ["z"]]
    assert {d.why for d in log} == {"another kernel must run between them"}


def test_nothing_is_fused_across_transfers() -> None:
    """Not even where only another rank knows the path: what is received may need what was sent."""
    body = """
  %y: f32[6] = [i] tanh(%x[i])
  transfer(%y) {step=send, match=0, ranks=[0, 1], counts=[6]}
  %r: f32[6] = transfer() {step=recv, match=1, ranks=[1, 0], counts=[6]}
  %z: f32[6] = [i] %x[i] * %r[i]
"""
    made = module("%x: f32[6]", body, "%z")
    made.mesh = Mesh((("stage", 2),))
    _, log = fused(made)
    assert sum(isinstance(op, Fused) for op in made.functions["f"].body) == 0
    assert [d.why for d in log] == ["another kernel must run between them"]


def test_stages_and_recomputed_regions_are_kept_apart() -> None:
    body = """
  %y: f32[6] = [i] tanh(%x[i])
  %z: f32[6] = [i] %y[i] * 2.0  {recompute=1}
"""
    got, log = fused(module("%x: f32[6]", body, "%z"))
    assert got == [["y"], ["z"]]
    assert [d.why for d in log] == ["they run at different times"]


def test_merged_axes_meet_plain_ones() -> None:
    body = """
  %a: f32[5, 12] = [i, (g < 3, c < 4)] %x[i, g, c] + 1.0
  %b: f32[5, 12] = [i, h] %a[i, h] * %w[h]
  %c: f32[5, 3, 4] = [i, g, c] %b[i, g * 4 + c] * 2.0
"""
    made = module("%x: f32[5, 3, 4], %w: f32[12]", body, "%c")
    assert fused(made)[0] == [["a", "b", "c"]]


def test_a_view_is_read_through() -> None:
    body = """
  %q: f32[2, 3, 5, 4] = [b, h, s, c] %x[b, s, h * 4 + c]
  %k: f32[2, 3, 4, 5] = [b, h, c, s] %x[b, s, h * 4 + c]
  %a: f32[2, 3, 5, 5] = [b, h, i, j] sum[c < 4](%q[b, h, i, c] * %k[b, h, c, j])
  %o: f32[2, 3, 5, 4] = [b, h, i, c] sum[j < 5](%a[b, h, i, j] * %q[b, h, j, c])
  %y: f32[2, 5, 12] = [b, s, (h < 3, c < 4)] %o[b, h, s, c]
"""
    made = module("%x: f32[2, 5, 12]", body, "%y")
    assert fused(made)[0] == [["a"], ["y"]]


def test_a_view_is_read_through_at_places_that_are_read() -> None:
    body = """
  %v: f32[7, 4] = [r, c] %x[r * 4 + c]
  %y: f32[5, 4] = [i, c] %v[check(%k[i], 7), c]
"""
    made = module("%k: i64[5], %x: f32[28]", body, "%y")
    assert fused(made)[0] == [["y"]]


def test_a_view_stays_where_the_library_needs_it() -> None:
    """Summed over two axes that no stride joins, the product needs the copy."""
    body = """
  %v: f32[2, 5, 3, 4] = [b, s, h, c] %x[b, h, s, c]
  %y: f32[12, 7] = [(h < 3, c < 4), j] sum[b < 2, s < 5](%v[b, s, h, c] * %w[b, s, j])
"""
    made = module("%x: f32[2, 3, 5, 4], %w: f32[2, 5, 7]", body, "%y")
    assert fused(made)[0] == [["v"], ["y"]]


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_what_is_fused_does_not_depend_on_sizes(rows: int) -> None:
    """Uneven and empty shards have the kernels that others have."""
    def sized(n: int) -> str:
        made = module("%x: f32[4, 6, 16], %w: f32[16], %b: f32[16]", NORM, "%y")
        text = print_module(made).replace("f32[4, ", f"f32[{n}, ").replace("i < 4", f"i < {n}")
        return text

    counts = [fused(parse_module(sized(n)))[0] for n in (rows, 4)]
    assert counts[0] == counts[1]


def test_a_decision_says_what_it_saves() -> None:
    body = """
  %y: f32[1000] = [i] tanh(%x[i])
  %z: f32[1000] = [i] %y[i] * 2.0
"""
    _, (decision,) = fused(module("%x: f32[1000]", body, "%z"))
    assert decision.merged
    assert decision.saved_bytes == 8000
    assert "fused: %y and %z: they share %y, saves 8000 bytes" in str(decision)


def test_micro_batches_and_steps_are_different_times() -> None:
    """What is done once a step does not run with every micro-batch."""
    body = """
  %y: f32[6] = [i] %x[i] * %w[i]
  %s: f32[6] = transfer(%y) {step=accumulate, match=0, ranks=[0], reduce=sum, counts=[6]}
  %z: f32[6] = [i] %s[i] + %w[i]
"""
    made = module("%x: f32[6], state %w: f32[6]", body, "%z")
    made.mesh = Mesh().with_micro(2)
    assert [k for k in fused(made)[0] if k != ["s"]] == [["y"], ["z"]]
