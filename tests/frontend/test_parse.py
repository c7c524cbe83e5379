"""Every construct of the language parses to the tree one expects, with its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from anabranch.frontend import grammar, kept
from anabranch.frontend import syntax as s
from anabranch.frontend.kept import cache_file
from anabranch.frontend.parse import parse, parse_expression
from anabranch.frontend.unparse import format_expression, format_module
from anabranch.ir.diagnostics import Span


def item(text: str) -> s.Item:
    (found,) = parse(text, "program.ab").items
    return found


def statements(*lines: str) -> tuple[s.Statement, ...]:
    found = item("def f():\n" + "".join(f"    {line}\n" for line in lines))
    assert isinstance(found, s.FuncDef)
    return found.body


def grouped(text: str) -> str:
    """The expression with parentheses around every operation."""
    expr = parse_expression(text)
    match expr:
        case s.Binary(op, left, right):
            return f"({grouped(format_expression(left))} {op} {grouped(format_expression(right))})"
        case s.Unary(op, operand):
            return f"({op} {grouped(format_expression(operand))})"
    return format_expression(expr)


PROGRAMS = {
    "imports": """
        from blocks import Block
        from zoo.vision import (Stem as stem, Head,)
        """,
    "index statements, packs, and reductions over them": """
        op rms_norm(x: T[*I, N], w: T[N], eps: float = 1e-6) -> T[*I, N]:
            "Scale to unit root mean square."
            r[*i]    = 1 / sqrt(mean[n](x[*i, n] ** 2) + eps)
            y[*i, n] = x[*i, n] * r[*i] * w[n]
            return y

        op total(x: T[*I]) -> T[]:
            t[] = sum[*i](x[*i])
            return t
        """,
    "merged indices, ranges, pads and compile-time asserts": """
        op grouped_conv1d(x: T[B, CI, W], w: T[O, C, K], groups: int = 1
                          ) -> T[B, O, W - K + 1]:
            assert CI == C * groups, "channels must be groups times the weight's"
            y[b, (g < groups, o), v] = sum[c, j](x[b, (g, c), v + j - 1, pad=0] * w[(g, o), c, j])
            return y

        op patches(x: T[B, H, W], p: int) -> T[B, (H//p) * (W//p), p*p]:
            y[b, (h, v), (i < p, j < p)] = x[b, (h, i), (v, j)]
            return y

        op flatten(x: T[*I]) -> T[N]:
            y[(*i)] = x[*i]
            return y
        """,
    "guards and chained comparisons in reductions": """
        op segment_mean(ids: Int[N], x: T[N, D], rows: int) -> T[rows, D]:
            y[v, d] = mean[n if ids[n] == v](x[n, d])
            return y

        op pool(x: T[*I, L], k: int, pad: int) -> T[*I, L]:
            y[*i, l] = mean[j < k if 0 <= l + j - pad < L](x[*i, l + j - pad])
            return y
        """,
    "recurrences and several results": """
        op scan(x: T[B, S, N], a: T[N], h0: T[B, N]) -> T[B, S, N], T[B, N]:
            h[b, t, n] = a[n] * h[b, t-1, n, pad=h0[b, n]] + x[b, t, n]
            return h, h[:, S-1]
        """,
    "scalar ops, random draws and choices": """
        op swish(x: Float, beta: Float = 1.0) -> Float:
            return x / (1 + exp(-beta * x))

        op noise(x: T[*I], p: float, key: Key) -> T[*I]:
            y[*i] = where(rand(key) >= p, x[*i] / (1 - p), 0) if training else x[*i]
            return y

        op normal(shape: Shape, key: Key, std: float = 1.0) -> f32[*shape]:
            y[*i] = std * randn(key)
            return y
        """,
    "functions without types": """
        def out_size(n, k, stride=1, ceil=False):
            span = n - k
            if ceil:
                return -(-span // stride) + 1
            elif stride == 1:
                return span + 1
            else:
                return span // stride + 1

        scale, widths = 2, [2**i for i in range(4) if i % 2 == 0 if i]
        """,
    "models with buffers, lists of parameters and optional fields": """
        model Net(sizes: [int], dim: int, bias: bool = True):
            '''
            A net.
            '''
            head = dim // 2
            tables: [f32[n, dim] @ {data: S(0)} for n in sizes] = normal(std=0.01)
            bias: f32[dim] = zeros() if bias else None
            blocks: [Block(a, b, heads=4) for _, (a, b) in enumerate(zip(sizes, sizes[1:]))]
            buffer count: i64[] = zeros()
            assert head > 0, "too narrow"
            if dim > 64:
                extra: Linear(dim, dim)
            else:
                extra: Linear(dim, 64)

            def forward(x: T[B, S, dim]) -> f32[B, S], f32[]:
                count := count + 1
                rows = [t[ids[:, i]] for i, t in enumerate(tables)]
                for block in blocks[:-1]:
                    x = block(x) if training else x
                return concat(rows + [x], axis=-1)[..., None, ::2], x.reshape([B, -1]).T
        """.replace("'''", '"""'),
    "layouts, stages and recomputation": """
        model Part(vocab: int, dim: int):
            table: f32[vocab, dim] @ {model: S(0), expert: P(max)} = normal(std=0.02)

            def forward(x: f32[B, S, dim] @ {data: S(0), model: B}):
                y = to(x, {model: S(-1), pod: P, op: B,})
                with stage(1 * stages // 2), recompute:
                    y = relu(y)
                report(norm=sum(y * y for _ in range(2)))
                return y @ table.T
        """,
    "recipes": """
        train GAN(latent=128):
            "As published."
            steps = 10_000
            data = images(batch=64)
            betas = 0.0, 0.9
            optimizer["critic.*", '*.bias'] = adamw(lr=4e-4, betas=(0.0, 0.9))
            optimizer["table"] = None
            metrics = [accuracy]

            def update(images):
                for _ in range(5):
                    minimize(critic_loss(images), "critic.*")
                minimize(generator_loss(images), "generator.*")
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_and_parses_back(name: str) -> None:
    indent = " " * 8
    text = "\n".join(line.removeprefix(indent) for line in PROGRAMS[name].split("\n"))
    module = parse(text, "program.ab")
    printed = format_module(module)
    assert repr(parse(printed, "printed.ab").items) == repr(module.items), printed
    assert format_module(parse(printed, "printed.ab")) == printed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c - d", "((a + (b * c)) - d)"),
        ("-x**2", "(- (x ** 2))"),
        ("2**-x**2", "(2 ** (- (x ** 2)))"),
        ("a or not b and c", "(a or ((not b) and c))"),
        ("a @ b // c", "((a @ b) // c)"),
        ("-a.b[0](c)", "(- a.b[0](c))"),
        ("a - (b - c)", "(a - (b - c))"),
    ],
)
def test_operators_bind_as_in_python(text: str, expected: str) -> None:
    assert grouped(text) == expected


def test_a_chain_of_comparisons_is_one_node() -> None:
    match parse_expression("0 <= a + 1 < n"):
        case s.Compare((s.Number(0), s.Binary("+"), s.Name("n")), ops):
            assert ops == ("<=", "<")
        case other:
            pytest.fail(repr(other))


def test_not_in_and_is_not_are_comparisons() -> None:
    match parse_expression("a not in b or a is not None"):
        case s.Binary("or", s.Compare(ops=first), s.Compare(ops=second)):
            assert (first, second) == (("not in",), ("is not",))
        case other:
            pytest.fail(repr(other))


def test_a_subscript_may_be_a_slice_dots_none_a_pack_a_guard_or_a_merged_index() -> None:
    found = parse_expression(
        "x[:n, 1:, ::2, ..., None, *i, k if k < 3, (g < 2, c), (*j), pad=-inf]"
    )
    assert isinstance(found, s.Index)
    kinds = [s.Slice] * 3 + [s.Dots, s.Constant, s.Star, s.Guard, s.Tuple, s.Tuple]
    assert [type(each) for each in found.items] == kinds
    assert [keyword.name for keyword in found.keywords] == ["pad"]


def test_a_choice_in_a_subscript_is_no_guard() -> None:
    match parse_expression("x[a if b else c]"):
        case s.Index(_, (s.Conditional(),)):
            pass
        case other:
            pytest.fail(repr(other))


def test_a_reduction_is_a_call_of_an_index() -> None:
    match parse_expression("sum[k, *i](x[k, *i])"):
        case s.Call(s.Index(s.Name("sum"), (s.Name("k"), s.Star(s.Name("i")))), (s.Index(),)):
            pass
        case other:
            pytest.fail(repr(other))


def test_the_left_side_decides_what_a_statement_defines() -> None:
    plain, several, equation, scalar, update = statements(
        "x = f()", "a, (b, c) = f()", "y[*i, n < 3] = n", "z[] = 1", "m := m + 1"
    )
    assert isinstance(plain, s.Assign)
    assert isinstance(several, s.Assign)
    assert isinstance(several.target, s.Tuple)
    assert isinstance(equation, s.Equation)
    assert [type(each) for each in equation.items] == [s.Star, s.Compare]
    assert isinstance(scalar, s.Equation)
    assert scalar.items == ()
    assert isinstance(update, s.Update)


def test_elif_is_an_if_in_the_else() -> None:
    (found,) = statements("if a:", "    b", "elif c:", "    d", "else:", "    e")
    match found:
        case s.If(s.Name("a"), _, (s.If(s.Name("c"), _, (s.Run(s.Name("e")),)),)):
            pass
        case other:
            pytest.fail(repr(other))


def test_pass_is_an_empty_body() -> None:
    assert statements("pass") == ()
    assert item("model Empty(): pass").body == ()


def test_a_text_that_stands_first_is_the_documentation() -> None:
    found = item(
        'op f(x: Float) -> Float:\n    """One.\n\n      Two.\n    Three.\n    """\n    return x\n'
    )
    assert isinstance(found, s.OpDef)
    assert found.doc == "One.\n\n  Two.\nThree."
    assert len(found.body) == 1


def test_texts_next_to_each_other_are_one_and_escapes_are_read() -> None:
    found = parse_expression(r'''"a\n" 'b\'' "\d"''')
    assert isinstance(found, s.String)
    assert found.value == "a\nb'\\d"


def test_words_of_definitions_are_names_elsewhere() -> None:
    module = parse(
        "model = 1\ndef op(train):\n    buffer = train\n    return model\n", "program.ab"
    )
    assert [type(each) for each in module.items] == [s.Assign, s.FuncDef]


def test_a_line_may_be_continued_in_brackets_and_by_a_backslash() -> None:
    (found,) = statements("x = f(a,", "# why", "b) + \\", "  c")
    assert isinstance(found, s.Assign)
    assert isinstance(found.value, s.Binary)


def test_brackets_may_close_and_continue_at_the_margin() -> None:
    module = parse("x = f(\na,\nb,\n)\ny = [\n1]\n", "program.ab")
    assert len(module.items) == 2


def test_comments_and_windows_line_ends_change_nothing() -> None:
    plain = "def f(x):\n    y = x\n    return y\n\nz = 1\n"
    noisy = "# a\n\ndef f(x):  # b\n  # c\n    y = x # d\n\n# e\n    return y\n# f\nz = 1 # g"
    assert parse(noisy, "a").items == parse(plain, "b").items
    assert parse(plain.replace("\n", "\r\n"), "c").items == parse(plain, "b").items


def test_an_empty_file_is_an_empty_module() -> None:
    assert parse("", "a").items == parse("# nothing\n\n", "b").items == ()


def test_nodes_know_their_place_and_compare_without_it() -> None:
    one, two = parse("x = 1\n\nx = 1\n", "program.ab").items
    assert one == two
    assert (one.span.line, two.span.line) == (1, 3)
    (found,) = statements("y = (a + b) * c")
    assert isinstance(found, s.Assign)
    assert found.value.span == Span("program.ab", 2, 9, 2, 20)


def test_the_place_of_a_definition_is_its_header() -> None:
    found = item("\ndef f(\n    x):\n    if x:\n        return x\n")
    assert isinstance(found, s.FuncDef)
    assert found.span == Span("program.ab", 2, 1, 2, 6)
    assert found.body[0].span == Span("program.ab", 4, 5, 4, 9)


def test_walk_meets_every_node_below() -> None:
    module = parse("op f(x: T[N], k: int) -> T[N]:\n    y[n] = x[n] + g(n, k=k)\n", "program.ab")
    names = [node.id for node in s.walk(module) if isinstance(node, s.Name)]
    assert names == ["T", "N", "int", "T", "N", "y", "n", "x", "n", "g", "n", "k"]


def test_trees_are_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "anabranch"
    assert str(cache_file("tree")).startswith(str(folder))
    folder.chmod(0o777)
    assert cache_file("tree") is None
    folder.rmdir()
    folder.write_text("in the way")
    assert cache_file("tree") is None


def test_trees_of_another_user_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert cache_file("tree") is None


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987654321)
    assert cache_file("tree") is None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = cache_file("tree", b"a text")
    assert made is not None
    kept.keep(made, b"its tree")
    return made


def test_a_tree_that_was_damaged_is_made_again(place: Path) -> None:
    assert kept.kept(place) == b"its tree"
    whole = place.read_bytes()
    for damaged in (b"", whole[:-1], b"\0" * len(whole), whole[:-1] + b"?"):
        place.write_bytes(damaged)
        assert kept.kept(place) is None


def test_a_full_disk_leaves_what_is_kept_as_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def half(path: Path, data: bytes) -> None:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    kept.keep(place, b"another tree")
    assert kept.kept(place) == b"its tree"
    assert list(place.parent.iterdir()) == [place]


def test_the_tables_appear_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While they are written another process may start: their file is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[Path] = []
    replace = Path.replace

    def looking(path: Path, target: Path) -> Path:
        seen.extend((tmp_path / "anabranch").iterdir())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", looking)
    grammar.parser.__wrapped__()
    (made,) = (tmp_path / "anabranch").iterdir()
    assert [path.name.rpartition(".")[0] for path in seen] == [made.name]
    assert grammar.parser.__wrapped__().parse("x = 1\n", start="module").data == "module"
