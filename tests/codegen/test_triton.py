"""Kernels in Triton, without a GPU: run in its interpreter, and compiled ahead of time.

Triton decides once per process whether it interprets, so those tests are a file of their own,
`interpreted.py`, which is run here in a process of its own, in parts that take equally long.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.codegen.emit import Launches, launches
from anabranch.codegen.facts import fits_in_i32
from anabranch.codegen.tile import tile
from anabranch.codegen.triton import print_kernel, wishes
from anabranch.ir.core import Op
from anabranch.ir.space import clause
from tests.codegen.cases import CASES, PRODUCTS, as_one, parsed

ROOT = Path(__file__).parents[2]
PARTS = ("step_runs_kernel", "step_runs_where", "case", "random or primitive or extremes or index")


@pytest.mark.parametrize("part", PARTS)
def test_kernels_give_in_the_interpreter_what_the_reference_gives(part: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", part,
               "tests/codegen/interpreted.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def source(op: Op) -> str:
    return "\n".join(s.kernel.source for s in launches(op, "triton"))


def test_a_kernel_begins_at_the_same_line_of_its_file_wherever_it_comes_from() -> None:
    """Triton's cache knows a kernel by its text and its line."""
    for name in ("gelu", "layer norm", "dropout"):
        for spec in launches(as_one(parsed(CASES[name])), "triton"):
            lines = spec.kernel.source.splitlines()
            assert lines[:6] == ["import triton", "import triton.language as tl", "", "",
                                 "@triton.jit", f"def {spec.kernel.symbol}("]


def test_nothing_is_left_to_defaults() -> None:
    (op, _) = parsed(PRODUCTS["matrix product"]).body
    text = source(op)
    assert 'input_precision="ieee"' in text
    assert all(word in text for word in ("num_warps", "num_stages", "enable_fp_fusion"))
    assert "tl.div_rn(" in source(as_one(parsed(CASES["softmax"])))


def test_layers_of_one_structure_share_their_kernels() -> None:
    first, second = (parsed(CASES["layer norm"].replace("%w", name)) for name in ("%w", "%scale"))
    of_a_program = Launches("triton")
    assert of_a_program(as_one(first)) is of_a_program(as_one(second))


def test_a_row_that_fits_a_block_is_loaded_once() -> None:
    """However many passes over it the kernel has."""
    short, long = (source(as_one(parsed(CASES["layer norm"].replace("35", n))))
                   for n in ("35", "5000"))
    assert short.count("tl.load(x_ptr") == 1
    assert "for " not in short
    assert long.count("tl.load(x_ptr") == 3


def masks(body: str) -> list[tuple[str, str]]:
    """The masks of the loads of a kernel, without what says that its points exist."""
    (op, _) = parsed(f"""(%x: f32[9, 70], %z: f32[9, 70], %m: f32[9]) {{
        %y: f32[9, 70] = [i, j] {body}""").body
    loads = re.findall(r"tl.load\((\w+)_ptr.*?mask=(.*?), other", source(op))
    return [(name, re.sub(r"\w+_inside( & )?", "", mask)) for name, mask in loads]


def test_a_load_that_a_condition_on_indices_makes_needless_is_masked() -> None:
    assert masks("where(i < 2, %x[i, j], %z[i, j])") == [
        ("x", "(i < 2)"), ("z", "((i < 2) == 0)")]
    assert masks("where(%z[i, j] > 0.0, where(i < 2, %x[i, j], 1.0), 0.0)") == [
        ("z", ""), ("x", "(i < 2)")]
    assert masks("where(i < 2, %m[j % 9], 0.0)") == [("m", "(i < 2)")]


def test_a_mask_spares_a_load_and_makes_none() -> None:
    """Values differ within a vector; a value per row is loaded once; so is what both sides read."""
    assert masks("where(%z[i, j] > 0.0, %x[i, j], 0.0)") == [("z", ""), ("x", "")]
    assert masks("where(j % 2 == 0, %m[i], %x[i, j])") == [
        ("m", ""), ("x", "((ab_int_mod(j, 2) == 0) == 0)")]
    assert masks("where(i < 2, %x[i, j], %x[i, j] * 2.0)") == [("x", "")]
    assert masks("where(i < 2, %x[i, j], 0.0) + %x[i, j]") == [("x", "")]


def test_indices_have_64_bits_where_32_are_not_enough() -> None:
    text = """(%x: f32[{n}, 4]) {{
        %y: f32[{n}] = [i] %x[i, 1]"""
    (small, _), (large, _) = (parsed(text.format(n=n)).body for n in (1000, 1 << 30))
    assert "tl.int64" not in source(small)
    assert "tl.program_id(0).to(tl.int64)" in source(large)
    (piece,) = tile(large, wishes([clause(large)])).pieces
    assert not fits_in_i32(piece)


def test_a_name_that_python_or_a_block_has_is_spelled_differently() -> None:
    text = """(%range: f32[5, 70], %lambda: f32[70]) {
        %ROWS: f32[5, 70] = [async, i] %range[async, i] * %lambda[i]
        return %ROWS"""
    (piece,) = tile(as_one(parsed(text))).pieces
    text = print_kernel(piece.kernel)
    compile(text, "kernel.py", "exec")
    assert {"lambda", "range", "async"}.isdisjoint(
        node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store))
