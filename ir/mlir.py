"""Prints a module in MLIR's generic form, for MLIR's tools (with unregistered dialects allowed).

Every op `kind` is `"anabranch.kind"` with its attributes. A layout is the encoding of the tensor
type, a dictionary by mesh axis; expressions are nested arrays, with the primitive first:
`["add", ["read", 0, ["i"]], 1.0 : f32]`; an index variable is a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from anabranch.ir.core import Argument, Block, Function, Module, Op, Value
from anabranch.ir.diagnostics import NOWHERE, Loc
from anabranch.ir.expr import Call, Cast, Const, Expr, Origin, Rand, Read, Var
from anabranch.ir.ops import region_of
from anabranch.ir.sbp import Layout
from anabranch.ir.types import TensorType, is_float, itemsize

TYPES = {"bool": "i1", "u8": "ui8", "u16": "ui16", "u32": "ui32", "u64": "ui64"}  # MLIR's names
EXPONENT_BITS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}

Numbers = dict[Value, str]


def print_mlir(module: Module) -> str:
    """The module as one `builtin.module` of `anabranch.func`s."""
    lines = [line for f in module.functions.values() for line in _function(f)]
    attributes: dict[str, object] = {"anabranch.phase": module.phase}
    if module.mesh is not None:
        attributes["anabranch.mesh"] = module.mesh.axes
    body = "\n".join(f"  {line}" for line in lines)
    return f'"builtin.module"() ({{\n{body}\n}}){_dictionary(attributes)} : () -> ()\n'


def _function(function: Function) -> list[str]:
    arguments = tuple(_parameter(a) for a in function.arguments)
    attributes = _dictionary({"sym_name": function.name, "arguments": arguments})
    inner = _block(function.body, {})
    return ['"anabranch.func"() ({', *inner, f"}}){attributes} : () -> ()"]


def _parameter(argument: Argument) -> dict[str, object]:
    return {
        "name": argument.value.name, "role": argument.role, "stage": argument.stage,
        "pin": argument.pin,
    }


def _block(block: Block, numbers: Numbers) -> list[str]:
    for value in block.args:
        numbers[value] = f"%{len(numbers)}"
    arguments = ", ".join(f"{numbers[v]}: {_type(v.type)}" for v in block.args)
    label = [f"^bb0({arguments}):"] if arguments else []
    return [*label, *(f"  {line}" for op in block for line in _op(op, numbers))]


def _op(op: Op, numbers: Numbers) -> list[str]:
    operands = ", ".join(numbers[v] for v in op.operands)
    inside = region_of(op)
    region = None if inside is None else _block(inside, numbers)
    for value in op.results:
        numbers[value] = f"%{len(numbers)}"
    results = ", ".join(numbers[v] for v in op.results) + (" = " if op.results else "")
    head = f'{results}"anabranch.{op.kind}"({operands})'
    tail = f"{_attributes(op)} : {_signature(op)}{_location(op.loc)}"
    return [head + tail] if region is None else [f"{head} ({{", *region, f"}}){tail}"]


def _signature(op: Op) -> str:
    """`(operand types) -> result types`, in parentheses unless there is one result."""
    results = ", ".join(_type(v.type) for v in op.results)
    results = results if len(op.results) == 1 else f"({results})"
    return f"({', '.join(_type(v.type) for v in op.operands)}) -> {results}"


def _type(type: TensorType) -> str:
    shape = "".join(f"{size}x" for size in type.shape)
    encoding = "" if type.layout is None else f", {_layout(type.layout)}"
    return f"tensor<{shape}{_dtype(type.dtype)}{encoding}>"


def _dtype(dtype: str) -> str:
    return TYPES.get(dtype, dtype)


def _layout(layout: Layout) -> str:
    return "{" + ", ".join(f'{axis} = "{sbp}"' for axis, sbp in layout.entries) + "}"


def _location(loc: Loc) -> str:
    """`loc("path"("file":line:col))`."""
    if loc == NOWHERE:
        return ""
    place = f"{_string(loc.file)}:{loc.line}:{loc.col}"
    return f" loc({_string(loc.path)}({place}))" if loc.path else f" loc({place})"


def _attributes(op: Op) -> str:
    """Those of the kind, and what all ops have; what is not there is left out."""
    names = [name for name in op.attributes if name != "region"]
    names += [name for name in ("stage", "recompute") if getattr(op, name)]
    return _dictionary({name: getattr(op, name) for name in names})


def _dictionary(items: dict[str, object]) -> str:
    pairs = (f"{name} = {_attribute(value)}" for name, value in items.items() if value is not None)
    text = ", ".join(pairs)
    return f" {{{text}}}" if text else ""


def _attribute(value: object) -> str:
    match value:
        case Expr():
            return _expr(value)
        case Layout():
            return _layout(value)
        case str():
            return _string(value)
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case tuple():
            return _array(map(_attribute, value))
        case dict():
            return _dictionary(value).strip() or "{}"
    raise TypeError(f"no MLIR attribute for {value!r}")


def _array(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"


def _expr(expr: Expr) -> str:
    match expr:
        case Const(value, dtype):
            return _number(value, dtype)
        case Var(name):
            return _string(name)
        case Origin(base, step):
            return _array(['"origin"', str(base), str(step)])
        case Read(operand, subscripts, pad):
            tail = [] if pad is None else [_expr(pad)]
            return _array(['"read"', str(operand), _array(map(_expr, subscripts)), *tail])
        case Call(fn, args):
            return _node(fn, args)
        case Cast(dtype, arg):
            return _array(['"cast"', _dtype(dtype), _expr(arg)])
        case Rand(kind, stream, seed, step, counter):
            inner = map(_expr, (seed, step, counter))
            return _array(['"rand"', _string(kind), str(stream), *inner])
    raise TypeError(f"not an expression: {expr!r}")


def _node(fn: str, args: Sequence[Expr]) -> str:
    return _array([_string(fn), *map(_expr, args)])


def _number(value: float | int | bool, dtype: str) -> str:
    """A typed literal; a float without a decimal form is given by its bits."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return f"{int(value)} : {_dtype(dtype)}"
    if not math.isfinite(value):
        return f"{_bits(value, dtype):#x} : {dtype}"
    digits, e, exponent = repr(float(value)).partition("e")
    digits = digits if "." in digits else f"{digits}.0"
    return f"{digits}{e}{exponent} : {dtype}"


def _bits(value: float, dtype: str) -> int:
    """The pattern of an infinity (exponent all ones) or a quiet NaN (and the first bit after)."""
    width, exponent = 8 * itemsize(dtype), EXPONENT_BITS[dtype]
    ones = (1 << exponent) - 1 << width - 1 - exponent
    if math.isnan(value):
        return ones | 1 << width - 2 - exponent
    return ones | (1 << width - 1 if value < 0 else 0)


def _string(text: str) -> str:
    """Quoted, with bytes outside of printable ASCII in hexadecimal."""
    plain = text.encode().decode("latin-1")
    escaped = re.sub(r'[^ -~]|["\\]', lambda m: f"\\{ord(m[0]):02X}", plain)
    return f'"{escaped}"'
