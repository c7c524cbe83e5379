"""Functions for tests, written as statements in Python syntax and read with `ast`.

    function("y[i, j] = sum[k](x[i, k] * w[k, j])", x="f32[3, 4]", w="f32[4, 5]")

It is the index notation with three changes that Python asks for: `pad(x[i - 1], 0)`, a guard
written `sum[k, given(k <= i)](...)`, and `cast(f32, e)`. A range that no plain read tells is given
in `sizes`. The value of the last statement is returned, or those of `results`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from anabranch.ir.core import Function, Module, Value
from anabranch.ir.expr import Call, Cast, Const, Expr, Rand, Read, Var, add, integer, mul
from anabranch.ir.ops import REDUCTIONS, Compute, Gradient, Return
from anabranch.ir.scalar import PRIMITIVES, dtype_of
from anabranch.ir.types import DTYPES, TensorType, is_float, tensor

OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le",
    ast.Gt: "gt", ast.GtE: "ge", ast.And: "and", ast.Or: "or", ast.USub: "neg", ast.Not: "not",
}


def function(
    text: str, *, sizes: dict[str, int] | None = None, results: Sequence[str] = (), **types: str
) -> Function:
    """The function whose arguments are `types` and whose body is the statements of `text`."""
    made = Function("f")
    env = {name: made.add_argument(name, parse_type(t)) for name, t in types.items()}
    last = ""
    for statement in ast.parse(text.strip()).body:
        assert isinstance(statement, ast.Assign)
        op = Statement(statement, env, sizes or {}).compute()
        last = op.result.name
        env[last] = made.body.append(op).result
    made.body.append(Return([env[name] for name in results or [last]]))
    return made


def with_gradient(made: Function, by: Sequence[str], weights: str = "f32") -> Function:
    """`made` followed by the gradient of sum(result * seed) for its only result, by arguments;
    it returns the gradients only. The seed is a new last argument."""
    end = made.body.last
    assert end is not None
    (value,) = end.operands
    end.erase()
    seed = made.add_argument("seed", tensor(value.type.dtype, value.type.shape))
    names = tuple(f"i{n}" for n in range(value.type.rank))
    places = tuple(Var(name) for name in names)
    loss = made.body.append(Compute(
        [value, seed], value.type.dtype, list(zip(names, value.type.shape, strict=True)), [],
        mul(Read(0, places), Read(1, places)),
        reduce="sum" if names else "", reduced=names, name="loss"))
    arguments = {a.value.name: a.value for a in made.arguments}
    gradient = made.body.append(Gradient(loss.result, [arguments[name] for name in by]))
    made.body.append(Return(gradient.results))
    return made


def module(made: Function) -> Module:
    result = Module()
    result.add(made)
    return result


def parse_type(text: str) -> TensorType:
    dtype, sizes = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
    return tensor(dtype, tuple(int(n) for n in sizes.split(",") if n.strip()))


def names_in(node: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


class Statement:
    """One statement being turned into a compute."""

    def __init__(self, node: ast.Assign, env: dict[str, Value], sizes: dict[str, int]) -> None:
        (self.target,) = node.targets
        self.node, self.env, self.sizes = node.value, env, dict(sizes)
        self.operands: list[Value] = []
        for read in ast.walk(node.value):
            if isinstance(read, ast.Subscript) and names_in(read.value)[0] in env:
                self.see(read)

    def see(self, read: ast.Subscript) -> None:
        """Plain subscripts tell ranges, merged ones the last missing factor."""
        value = self.env[names_in(read.value)[0]]
        for place, size in zip(parts(read.slice), value.type.shape, strict=True):
            if isinstance(place, ast.Name):
                self.sizes.setdefault(place.id, size)
            if isinstance(place, ast.Tuple):
                names = [n for n in names_in(place) if n not in self.sizes]
                for name in names:
                    known = [self.sizes[n] for n in names_in(place) if n in self.sizes]
                    rest = size
                    for factor in known:
                        rest //= factor
                    if len(names) == 1:
                        self.sizes[name] = rest

    def compute(self) -> Compute:
        assert isinstance(self.target, ast.Subscript)
        dims = [tuple(names_in(part)) for part in parts(self.target.slice)]
        reduce, reduced, guard, body = self.reduction()
        expr = self.expr(body)
        dtype = dtype_of(expr, self.dtypes)
        if reduce in ("argmax", "argmin"):
            dtype = "i64"
        names = [v for dim in dims for v in dim] + reduced
        chosen = None if guard is None else self.expr(guard)
        return Compute(
            self.operands, dtype, [(n, self.sizes[n]) for n in names], dims, expr,
            reduce=reduce, reduced=reduced, guard=chosen, name=names_in(self.target.value)[0])

    def reduction(self) -> tuple[str, list[str], ast.expr | None, ast.expr]:
        match self.node:
            case ast.Call(ast.Subscript(ast.Name(fn), variables), [body]) if fn in REDUCTIONS:
                every = parts(variables)
                guards = [v.args[0] for v in every if isinstance(v, ast.Call)]
                plain = [names_in(v)[0] for v in every if not isinstance(v, ast.Call)]
                return fn, plain, guards[0] if guards else None, body
        return "", [], None, self.node

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(v.type.dtype for v in self.operands)

    def expr(self, node: ast.expr) -> Expr:
        match node:
            case ast.Constant(bool() | int() | float() as value):
                kind = {bool: "bool", int: "i64", float: "f32"}[type(value)]
                return Const(value, kind)
            case ast.Name(("inf" | "nan") as name):
                return Const(float(name), "f32")
            case ast.Name(name):
                return Var(name) if name not in self.env else self.read(name, [])
            case ast.Subscript(ast.Name(name), subscripts):
                return self.read(name, parts(subscripts))
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                return self.agree(OPERATORS[type(op)], left, right)
            case ast.BoolOp(op, [first, *rest]):
                result = self.expr(first)
                for other in rest:
                    result = Call(OPERATORS[type(op)], (result, self.expr(other)))
                return result
            case ast.UnaryOp(op, arg):
                return Call(OPERATORS[type(op)], (self.expr(arg),))
            case ast.Call(ast.Name(fn), args):
                return self.call(fn, args)
        raise AssertionError(ast.dump(node))

    def read(self, name: str, subscripts: list[ast.expr], pad: Expr | None = None) -> Expr:
        value = self.env[name]
        if value not in self.operands:
            self.operands.append(value)
        number = self.operands.index(value)
        return Read(number, tuple(self.place(s) for s in subscripts), pad)

    def place(self, node: ast.expr) -> Expr:
        if not isinstance(node, ast.Tuple):
            return self.expr(node)
        total: Expr = Var(names_in(node)[0])
        for name in names_in(node)[1:]:
            total = add(mul(total, integer(self.sizes[name])), Var(name))
        return total

    def agree(self, fn: str, *nodes: ast.expr) -> Expr:
        args = [self.expr(node) for node in nodes]
        kinds = [dtype_of(a, self.dtypes) for a in args]
        floats = [k for k, a in zip(kinds, args, strict=True)
                  if is_float(k) and not isinstance(a, Const)] or [k for k in kinds if is_float(k)]
        if fn == "div" and not floats:
            floats = ["f32"]
        return Call(fn, tuple(a if not floats else to(a, floats[0], self.dtypes) for a in args))

    def call(self, fn: str, args: list[ast.expr]) -> Expr:
        match fn, args:
            case "pad", [ast.Subscript(ast.Name(name), subscripts), value]:
                dtype = self.env[name].type.dtype
                return self.read(name, parts(subscripts),
                                 to(self.expr(value), dtype, self.dtypes))
            case "cast", [ast.Name(dtype), arg]:
                return Cast(dtype, self.expr(arg))
            case ("rand" | "randn"), [stream, seed, step, counter]:
                assert isinstance(stream, ast.Constant)
                return Rand("uniform" if fn == "rand" else "normal", int(str(stream.value)),
                            self.expr(seed), self.expr(step), self.expr(counter))
            case "where", [condition, yes, no]:
                both = self.agree("add", yes, no)
                assert isinstance(both, Call)
                return Call("where", (self.expr(condition), *both.args))
        assert fn in PRIMITIVES, fn
        kind = PRIMITIVES[fn].kind
        if kind == "float":
            return Call(fn, tuple(self.expr(a) for a in args))
        return self.agree(fn, *args)


def to(expr: Expr, dtype: str, dtypes: tuple[str, ...]) -> Expr:
    """`expr` in a dtype; literals change, everything else is cast."""
    assert dtype in DTYPES
    if isinstance(expr, Const):
        return Const(float(expr.value) if is_float(dtype) else int(expr.value), dtype)
    return expr if dtype_of(expr, dtypes) == dtype else Cast(dtype, expr)


def parts(node: ast.expr) -> list[ast.expr]:
    """The subscripts of `x[...]`; `x[()]` has none."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]
