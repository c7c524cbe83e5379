"""Derived gradients against finite differences, in f64, along random directions.

The derivative of sum(result * weight) along a direction is compared with the difference of two
runs. What `stop(e)` holds back is held fixed in both, because it is meant to have no gradient; what
`stop(e, grad=g)` says is not, because it claims that the derivatives of e and g are equal. Where
they are not, the first statement whose own gradient is wrong is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from anabranch.excerpts import Excerpt, claims, excerpt, related, states_gradient, used_by
from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import CompilerBug, UserError
from anabranch.ir.expr import (
    Call,
    Const,
    Expr,
    Read,
    Var,
    add,
    children,
    mul,
    sub,
    with_children,
)
from anabranch.ir.ops import Compute, Gradient, Return, Scan, clone_block
from anabranch.ir.recurrence import result_of, statements
from anabranch.ir.reference import evaluate, evaluate_op
from anabranch.ir.scalar import dtype_of
from anabranch.ir.types import is_float, tensor
from anabranch.lowering.differentiate import differentiate

Array = np.ndarray[Any, Any]
Env = dict[Value, Array]
Values = Callable[[Excerpt], Sequence[Array] | None]
"""Data for what a statement is tried with; None where none are known."""

STEP = 1e-6
CLOSEST = 1e-9
TOLERANCE = 1e-4  # of the size of the two numbers
NOISE = 1e-5  # of a value: what rounding does to its slope over STEP, a few times, over TOLERANCE
DIRECTIONS = 3


@dataclass(frozen=True, slots=True)
class Slope:
    """A derivative along a direction of one argument: as derived, and as measured of a function of
    this value, whose last bits are noise in it."""

    argument: str
    derived: float
    measured: float
    value: float

    @property
    def error(self) -> float:
        size = max(1.0, abs(self.derived), abs(self.measured), NOISE * abs(self.value))
        return abs(self.derived - self.measured) / size

    @property
    def is_right(self) -> bool:
        return self.error <= TOLERANCE  # false for nan too


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong slope and the statement that it is due to."""

    slope: Slope
    op: Op


@dataclass(frozen=True, slots=True)
class Verdict:
    """By which arguments the gradient was tried, the largest error, what is wrong, and the
    statements that give a gradient to a value which has none."""

    by: tuple[str, ...]
    error: float
    faults: tuple[Fault, ...]
    invented: tuple[Op, ...]

    @property
    def fault(self) -> Fault | None:
        """The first one."""
        return self.faults[0] if self.faults else None


def check_gradients(function: Function, args: Sequence[Array]) -> Verdict:
    """The gradient of all results of a function by all its arguments that are floats."""
    slopes, invented = _slopes(function, args)
    wrong = next((slope for slope in slopes if not slope.is_right), None)
    faults = tuple(_faults(function, args, everywhere=wrong is not None))
    if wrong is not None and not faults:
        faults = (_blame(function, args, wrong),)
    by = tuple(dict.fromkeys(slope.argument for slope in slopes))
    error = max((slope.error for slope in slopes), default=0.0)
    return Verdict(by, error, faults, tuple(invented))


def _faults(function: Function, args: Sequence[Array], *, everywhere: bool) -> Iterator[Fault]:
    """The statements that have a wrong gradient by themselves: of all, or of those that state one,
    which another statement may hide in the whole."""
    env: Env = dict(zip(function.body.args, args, strict=True))

    def known(tried: Excerpt) -> list[Array]:
        return [env[v] for v in tried.sources]

    for op in function.body:
        if isinstance(op, Return):
            return
        operands = [env[v] for v in op.operands]
        env.update(zip(op.results, evaluate_op(op, operands, double=True), strict=True))
        if isinstance(op, Compute) and (everywhere or states_gradient(op)):
            fault = statement_fault(op, known)
            if fault is not None:
                yield fault


def statement_fault(op: Compute, values: Values) -> Fault | None:
    """What is wrong with the gradient of a statement by itself, and with what it states even where
    nothing comes of it. It is right if it is for any values of what it reads, or else for those
    that they have together; there the fault may also be of a statement before it."""
    fault = _fault(op, (), values)
    before = related(op) if fault is not None else []
    if not before:
        return fault
    if any(isinstance(each, Compute) and states_gradient(each) and statement_fault(each, values)
           for each in before):
        return None
    return _fault(op, before, values)


def _fault(op: Compute, before: Sequence[Op], values: Values) -> Fault | None:
    args = values(excerpt(op, before))
    if args is None:
        return None
    for each in (op, *claims(op)):
        try:
            slopes, _ = _slopes(excerpt(each, before).function, args)
        except UserError:  # a claim that holds only where the statement chooses it
            continue
        wrong = next((slope for slope in slopes if not slope.is_right), None)
        if wrong is not None:
            return Fault(wrong, op)
    return None


def _blame(function: Function, args: Sequence[Array], wrong: Slope) -> Fault:
    """The first statement whose value has a wrong gradient; the last one if they all differ."""
    last = function.body.last
    assert last is not None
    made = [(op, value) for op in function.body if isinstance(op, Compute | Scan)
            for value in op.results if is_float(value.type.dtype)]
    for op, value in made:
        for slope in _slopes(function, args, value)[0]:
            if not slope.is_right:
                return Fault(slope, op)
    return Fault(wrong, made[-1][0] if made else last)


def _slopes(
    function: Function, args: Sequence[Array], of: Value | None = None
) -> tuple[list[Slope], list[Op]]:
    """Slopes of the results (or of one value) by each argument, along a few directions; and the
    statements whose stated gradients no difference can contradict."""
    random = np.random.default_rng(1)
    by = float_inputs(function)
    made = weighted(function, of, random, finite=True)
    if not by or made is None:
        return [], []
    scalar, weights = made
    exact = [np.asarray(x, np.float64) if is_float(a.value.type.dtype) else x
             for x, a in zip(args, function.arguments, strict=True)]
    backward = gradient_of(scalar, [a.value.name for a in by])
    gradients = evaluate(backward, [*exact, *weights], double=True)
    held = Held(scalar, [*exact, *weights], [*_nearby(exact, random), *weights])
    value = held.run([*exact, *weights])
    slopes = []
    for argument, gradient in zip(by, gradients, strict=True):
        place = [a is argument for a in function.arguments].index(True)
        for _ in range(DIRECTIONS):
            direction = random.choice([-1.0, 1.0], gradient.shape)
            derived = float(np.sum(gradient * direction))
            slope = Slope(argument.value.name, derived, math.nan, value)
            slopes.append(_measured(held, place, direction, [*exact, *weights], slope))
    return slopes, held.invented


def _nearby(args: Sequence[Array], random: np.random.Generator) -> list[Array]:
    """All floats moved a little."""
    return [x + STEP * random.normal(size=x.shape) if x.dtype == np.float64 else x for x in args]


def _measured(held: Held, place: int, direction: Array, args: Sequence[Array], slope: Slope
              ) -> Slope:
    """The slope with the difference quotient along a direction of one argument. Where that changes
    with the distance of its ends, there may be a jump between them: then it is taken closer."""
    step = STEP
    found = replace(slope, measured=_quotient(held, place, direction, args, step))
    while not found.is_right and step > CLOSEST:
        step /= 16
        closer = replace(slope, measured=_quotient(held, place, direction, args, step))
        size = max(abs(found.measured), abs(closer.measured))
        if abs(found.measured - closer.measured) < 0.5 * size:
            break
        found = closer
    return found


def _quotient(held: Held, place: int, direction: Array, args: Sequence[Array], step: float
              ) -> float:
    ends = []
    for sign in (1, -1):
        there = list(args)
        there[place] = args[place] + sign * step * direction
        ends.append(held.run(there))
    return (ends[0] - ends[1]) / (2 * step)


# ---- the function whose slope is taken


def float_inputs(function: Function) -> list[Argument]:
    """The arguments that a gradient can be taken by."""
    return [a for a in function.arguments
            if a.role == "input" and is_float(a.value.type.dtype)]


def weighted(
    function: Function, of: Value | None, random: np.random.Generator, finite: bool = False
) -> tuple[Function, list[Array]] | None:
    """A copy that returns sum(result * weight) over its float results, whose weights are new last
    arguments; None where there is no such result. If `finite`, without what is infinite: between
    infinities there is no difference, and no slope at one."""
    copy, values = copied(function)
    last = copy.body.last
    assert isinstance(last, Return)
    results = [v for v in last.values if is_float(v.type.dtype)] if of is None else [values[of]]
    last.erase()
    if not results:
        return None
    total, weights = weighted_sum(copy, results, random, finite)
    copy.body.append(Return([total]))
    return copy, weights


def weighted_sum(
    function: Function, results: Sequence[Value], random: np.random.Generator,
    finite: bool = False,
) -> tuple[Value, list[Array]]:
    """Append sum(result * weight) to a function, and its weights to the arguments."""
    weights = [random.normal(size=v.type.shape) for v in results]
    total: Value | None = None
    for number, value in enumerate(results):
        type = tensor(value.type.dtype, value.type.shape)
        weight = function.add_argument(f"weight{number}", type)
        part = function.body.append(_product_sum(value, weight, finite)).result
        total = part if total is None else function.body.append(_scalar_sum(total, part)).result
    assert total is not None, "there is a result"
    return total, weights


def copied(function: Function) -> tuple[Function, Mapping[Value, Value]]:
    """A function of its own, and which of its values stands for which."""
    body = clone_block(function.body)
    arguments = [Argument(v, a.role, stage=a.stage)
                 for v, a in zip(body.args, function.arguments, strict=True)]
    values = dict(zip(function.body.args, body.args, strict=True))
    for old, new in zip(function.body, body, strict=True):
        values.update(zip(old.results, new.results, strict=True))
    return Function(function.name, body, arguments), values


def _product_sum(value: Value, weight: Value, finite: bool) -> Compute:
    names = tuple(f"i{n}" for n in range(value.type.rank))
    read = Read(0, tuple(map(Var, names)))
    body = mul(read, Read(1, read.subscripts))
    if finite:
        body = Call("where", (Call("isinf", (read,)), Const(0.0, value.type.dtype), body))
    return Compute(
        [value, weight], value.type.dtype, list(zip(names, value.type.shape, strict=True)), [],
        body, reduce="sum" if names else "", reduced=names)


def _scalar_sum(a: Value, b: Value) -> Compute:
    wide = a.type.dtype
    return Compute([a, b], wide, [], [], Call("add", (Read(0, ()), Read(1, ()))))


def gradient_of(function: Function, by: Sequence[str]) -> Function:
    """A copy that returns the gradients of the only result of a function, by its arguments."""
    copy, _ = copied(function)
    last = copy.body.last
    assert isinstance(last, Return)
    (scalar,) = last.values
    last.erase()
    values = {a.value.name: a.value for a in float_inputs(copy)}
    made = copy.body.append(Gradient(scalar, [values[name] for name in by]))
    copy.body.append(Return(made.results))
    return differentiate(Module({copy.name: copy})).functions[copy.name]


# ---- runs in which what is stopped does not move


class Held:
    """A function in which what is stopped keeps the value that it has for some arguments.

    `stop(e)` is e there. `stop(e, grad=g)` is g plus what e was more than g, if e is the same
    `nearby`: a gradient is then given to what has none, and no difference can contradict it
    (`invented` has these ops). Otherwise it is e.
    """

    def __init__(
        self, function: Function, args: Sequence[Array], nearby: Sequence[Array]
    ) -> None:
        self.function = function
        self.ops: list[tuple[Op, list[Array]]] = []
        self.invented: list[Op] = []
        here: Env = dict(zip(function.body.args, args, strict=True))
        there: Env = dict(zip(function.body.args, nearby, strict=True))
        for op in function.body:
            if isinstance(op, Return):
                continue
            self.ops.append(self._held(op, here, there))
            for env in (here, there):
                results = evaluate_op(op, [env[v] for v in op.operands], double=True)
                env.update(zip(op.results, results, strict=True))

    def run(self, args: Sequence[Array]) -> float:
        """The only result, which is 0-d."""
        env: Env = dict(zip(self.function.body.args, args, strict=True))
        last = self.function.body.last
        assert isinstance(last, Return)
        originals = (op for op in self.function.body if not isinstance(op, Return))
        for original, (op, fixed) in zip(originals, self.ops, strict=True):
            operands = [env[v] for v in original.operands]
            results = evaluate_op(op, [*operands, *fixed], double=True)
            env.update(zip(original.results, results, strict=True))
        return float(env[last.operands[0]])

    def _held(self, op: Op, here: Env, there: Env) -> tuple[Op, list[Array]]:
        """The op with arrays, which it reads as further operands, in place of what is stopped."""
        if isinstance(op, Scan):
            return self._held_scan(op, _inside(op, here), _inside(op, there))
        if not isinstance(op, Compute):
            return op, []
        fixed: list[Array] = []

        def hold(inside: Expr) -> Expr | None:
            array = _value_of(op, inside, here)
            if array is None:
                return None
            fixed.append(array)
            places = tuple(map(Var, used_by(op, inside)))
            return Read(len(op.operands) + len(fixed) - 1, places)

        def still(node: Expr) -> Expr:
            """From the outside in: what is held has nothing to hold within."""
            match node:
                case Call("stop", (inside,)):
                    kept = hold(inside)
                    if kept is not None:
                        return kept
                case Call("stop_grad", (inside, slope)) if _is_still(op, inside, here, there):
                    more = hold(sub(inside, slope))
                    self.invented += [op] if more is not None else []
                    if more is not None:
                        return add(still(slope), more)
            return with_children(node, tuple(map(still, children(node))))

        body = still(op.body)
        more = [Value(tensor("f64", array.shape)) for array in fixed]
        made = Compute(
            [*op.operands, *more], op.result.type.dtype, op.ranges, op.dims, body,
            reduce=op.reduce, reduced=op.reduced, guard=op.guard, loc=op.loc)
        return made, fixed

    def _held_scan(self, scan: Scan, here: Env, there: Env) -> tuple[Op, list[Array]]:
        """The same for the statements of a scan, of whose values `here` and `there` know all."""
        region = Block([(v.name, v.type) for v in scan.region.args])
        known = dict(zip(scan.region.args, region.args, strict=True))
        fixed: list[Array] = []
        more: list[Value] = []
        for op in statements(scan):
            made, arrays = self._held(op, here, there)
            own = made.operands[len(op.operands) :]
            made.set_operands([*(known[v] for v in op.operands), *own])
            known[op.result] = region.append(made).result
            fixed, more = fixed + arrays, [*more, *own]
        count = len(scan.operands)
        region.args[count:count] = more
        region.append(Return([known[v] for v in scan.news]))
        outside = [Value(v.type) for v in (*scan.operands, *more)]
        return Scan(outside, region, scan.variable, scan.extent, reverse=scan.reverse,
                    loc=scan.loc), fixed


def _inside(scan: Scan, env: Env) -> Env:
    """All values of a scan's region, as whole tensors."""
    operands = [env[v] for v in scan.operands]
    copy = scan.clone([Value(v.type) for v in scan.operands])
    for op in statements(copy):
        result_of(copy, op.result)
    made = dict(zip(copy.news, evaluate_op(copy, operands, double=True), strict=True))
    twins = dict(zip(statements(scan), statements(copy), strict=True))
    found = dict(zip(scan.inputs, operands, strict=True))
    found |= {op.result: made[twin.result] for op, twin in twins.items()}
    return found | {history: found[new]
                    for history, new in zip(scan.histories, scan.news, strict=True)}


def _is_still(op: Compute, inside: Expr, here: Env, there: Env) -> bool:
    first, second = _value_of(op, inside, here), _value_of(op, inside, there)
    return first is not None and second is not None and np.array_equal(first, second)


def _value_of(op: Compute, inside: Expr, env: Env) -> Array | None:
    """An expression of a compute over the variables that it uses; None where it is not defined
    for all of them, because a `where` or a guard leaves some out."""
    dtype = dtype_of(inside, tuple(v.type.dtype for v in op.operands))
    extents, used = op.extents, used_by(op, inside)
    operands = [Value(v.type) for v in op.operands]
    alone = Compute(operands, dtype, [(name, extents[name]) for name in used],
                    [(name,) for name in used], inside, loc=op.loc)
    try:
        return evaluate_op(alone, [env[v] for v in op.operands], double=True)[0]
    except (UserError, CompilerBug):
        return None
