"""Tables of syntax mistakes: what people write -> what to tell them.

- `SIGNS`: characters that belong to no word of the language;
- `FOREIGN`: words and phrases of Python and its relatives that the language does not have;
- `NAMES`: names that are defined elsewhere and not here;
- `EXAMPLES`: malformed snippets. A program that gets the parser stuck as one of these does has made
  the same mistake (`explain.py`).

A new mistake is a row here; `tests/frontend/syntax_errors.md` shows how it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from anabranch.ir.diagnostics import nearest


@dataclass(frozen=True, slots=True)
class Phrase:
    """A pattern of text at the place of the error. The caret goes under its first group, or under
    all of it; that text is `{0}` in the message."""

    pattern: str
    message: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """Snippets that get the parser stuck in the way that `message` describes."""

    message: str
    help: str
    snippets: tuple[str, ...]


SIGNS = (
    Phrase(
        r"[\"']",
        "this text has no closing quote",
        'a text ends on its line, or at \'"""\' if it begins so',
    ),
    Phrase(r"&&?", "'{0}' is not an operator", "write 'and'"),
    Phrase(r"\|\|", "'||' is not an operator", "write 'or'"),
    Phrase(r"[!~]", "'{0}' is not an operator", "write 'not'"),
    Phrase(r"\^", "'^' is not an operator", "a power is written '**'"),
    Phrase(r"\?", "'?' is not an operator", "a choice is written 'a if condition else b'"),
    Phrase(r";", "';' does not separate statements", "begin a new line"),
    Phrase(r"[“”„‘’]", "'{0}' is a typographic quote", "write '\"'"),
    Phrase(r"[−–—]", "'{0}' is not a minus sign", "write '-'"),
    Phrase(r"[×·]", "'{0}' is not an operator", "write '*'"),
    Phrase(r"≤|≥|≠", "'{0}' is not an operator", "write '<=', '>=' or '!='"),
    Phrase(r"\\", "a '\\' joins lines only where it ends one"),
    Phrase(r"(?s).", "the character '{0}' has no meaning here"),
)

KEYWORD = (
    "if|elif|else|for|in|is|and|or|not|return|with|def|from|import|as|assert|pass|None|True|False"
)
_REDUCTION = "sum|max|min|prod|mean|any|all|argmax|argmin"

FOREIGN = (
    Phrase(
        r"^\s*(class)\s+\w.*",
        "there are no classes",
        "a model is written 'model Name(sizes):', with its fields and its functions",
    ),
    Phrase(
        r"^\s*(import)\b.*",
        "only names are imported, not whole modules",
        "the library is in scope without; of a file beside this one: 'from module import name'",
    ),
    Phrase(
        r"^\s*(while)[\s(].*",
        "there is no 'while'",
        "loops run when the program is compiled: 'for i in range(n):'; a value computed from "
        "earlier ones is a recurrence: h[t] = f(h[t-1, pad=0])",
    ),
    Phrase(
        r"^\s*(@).*",
        "there are no decorators",
        "a definition begins with its own word: op, def, model or train",
    ),
    Phrase(
        r"\b(lambda)\b[^=]*:.*",
        "there is no 'lambda'",
        "define the function with 'def', or as a scalar op",
    ),
    Phrase(
        r"^\s*(try(?=\s*:)|except\b|finally(?=\s*:)|raise(?=\s+\w)).*",
        "there are no exceptions",
        "a condition that must hold is written 'assert condition, \"message\"'",
    ),
    Phrase(
        r"^\s*(async|await|yield|global|nonlocal|del|match|switch|case|goto)\s+\w.*",
        "there is no statement '{0}'",
    ),
    Phrase(
        r"^\s*(fn|func|function|fun|let|var|const)\s+\w.*",
        "'{0}' does not begin a statement",
        "a function begins with 'def'; a name is defined by 'name = value'",
    ),
    Phrase(r"\b(else\s+if)\b", "'else if' is one word", "write 'elif'"),
    Phrase(r"^\s*(elseif|elsif)\b.*", "there is no '{0}'", "write 'elif'"),
    Phrase(
        r"\b(?:f|r|b|u|rb|fr)(?=[\"'])",
        "a text has no prefix",
        "there are no f-strings; 'report(name=value)' records a number",
    ),
    Phrase(
        r"(?:\*\*|//|[-+*/%@])=",
        "there is no '{0}'",
        "write it out, as in 'x = x + ...', in a def; an op defines each name once and "
        "accumulates by a reduction: sum[k](...)",
    ),
    Phrase(r"\+\+|--", "there is no '{0}'", "write 'n = n + 1' or 'n = n - 1'"),
    Phrase(rf"\b({KEYWORD})\s*:?=(?!=).*", "'{0}' is a word of the language and cannot be a name"),
    Phrase(
        r"(:=).*",
        "':=' gives a whole buffer its next value",
        "write 'name := value', a statement in a function of the model; all else is defined by '='",
    ),
    Phrase(
        rf"\b((?:{_REDUCTION})\[[^\]]*\])\s*(?=[\w.])",
        "the expression that is reduced stands in parentheses",
        "as in 'sum[k](x[i, k] * y[k])'",
    ),
    Phrase(
        r"^\s+(op|model|train)\s+\w+\s*\(.*",
        "there is no '{0}' inside another definition",
        "begin it at the left margin",
    ),
    Phrase(
        r"\b\d\w*[^\W\d]\w*", "'{0}' is neither a number nor a name", "a name begins with a letter"
    ),
    Phrase(r"<>", "there is no '<>'", "write '!='"),
    Phrase(r"=>", "there is no '=>'", "write '>=' to compare; a result type follows '->'"),
    Phrase(r"===|!==", "there is no '{0}'", "write '==' or '!='"),
)

CAST = "a dtype casts: i64(x), f32(x)"
UNKNOWN_VALUE = "the value of a tensor is not known when a program is compiled: compute with it"
NOTHING_RETURNED = "a function without 'return' gives None"
NO_DEVICE = "a program names no device: the mesh is given when it is compiled, as in --mesh data=2"

NAMES = {
    "print": "a program prints nothing; report(name=value) records a scalar and shows it",
    "Tensor": "a tensor type has a dtype and sizes: f32[N, 4], or T[*I] for any",
    "ModuleList": "a list of models is a field: layers: [Linear(n, n) for _ in range(3)]",
    "Parameter": "a parameter is a field with an initialiser: weight: f32[n, m] = normal(std=0.02)",
    "append": "no list is ever changed: [f(i) for i in range(n)] makes one, and so does a + [b]",
    "backward": "gradients are derived: a training step takes them by itself, grad(y, x) gives one",
    **dict.fromkeys(("detach", "no_grad"), "stop(x) is x without a gradient"),
    **dict.fromkeys(("clone", "contiguous"), "no value is ever changed: use it as it is"),
    **dict.fromkeys(("item", "tolist", "numpy"), UNKNOWN_VALUE),
    **dict.fromkeys(("cuda", "cpu", "device"), NO_DEVICE),
    **dict.fromkeys(("astype", "type", "long", "half", "double"), CAST),
    **{other: f"'{own}' is what it is called here" for other, own in {
        "view": "reshape", "size": "shape", "dim": "ndim",
        "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
        "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8",
    }.items()},
}


PARAMETERS = {"dim": "axis", "keepdim": "keepdims", "learning_rate": "lr", "input": "x",
              "in_features": "inputs", "out_features": "outputs"}
"""Parameters as other libraries call them, by what most are called here."""


def parameter_advice(name: str, known: Collection[str]) -> str:
    """The same of an argument by name."""
    own = PARAMETERS.get(name)
    return f"'{own}' is what it is called here" if own in known else nearest(name, known)


def advice(name: str, known: Iterable[str]) -> str:
    """What is said of a name that is not defined: what it is elsewhere, or the nearest one here."""
    names = [*known]
    if name not in NAMES and name.removesuffix("_") in names:
        return f"no value is ever changed: '{name.removesuffix('_')}' gives a new one"
    if name not in NAMES and name.removesuffix("_loss") in names:
        return f"'{name.removesuffix('_loss')}' is what it is called here"
    return NAMES.get(name) or nearest(name, names)


EXAMPLES = (
    Example(
        "'=' does not compare",
        "write '=='",
        (
            "def f(x):\n    if x = 1:\n        return x\n",
            "def f(x):\n    if x:\n        return x\n    elif x = 1:\n        return x\n",
            "def f(x):\n    assert x = 1\n",
            "def f(x):\n    return x = 1\n",
            "y = a if b = 1 else c\n",
            "y = [a for a in b if a = 1]\n",
            "y = sum[k if k = 1](x)\n",
            "y = f(x[k] = 1)\n",
            "y = (a = 1)\n",
        ),
    ),
    Example(
        "only one '=' stands on a line",
        "assign one name after the other",
        ("a = b = c\n", "train A():\n    a = b = c\n"),
    ),
    Example(
        "an op declares the type of its result",
        "as in 'op twice(x: T[*I]) -> T[*I]:'",
        ("op f(x: T[N]):\n    return x\n",),
    ),
    Example(
        "a parameter of an op has a type",
        "as in 'x: T[*I]' for a tensor of any shape, 'x: Float' for a scalar op, 'k: int'",
        (
            "op f(x) -> T[N]:\n    return x\n",
            "op f(x, y: T[N]) -> T[N]:\n    return x\n",
            "op f(x = 1) -> T[N]:\n    return x\n",
        ),
    ),
    Example(
        "only definitions, imports and assignments stand at the left margin",
        "indent this line if it belongs to the definition above",
        (
            "return x\n",
            "for i in x:\n    y\n",
            "if x:\n    y\n",
            "else:\n    y\n",
            "elif x:\n    y\n",
            "with x:\n    y\n",
            "assert x\n",
            "pass\n",
        ),
    ),
    Example(
        "this expression does nothing here",
        "calls for their effect stand in functions; '=' or ':' makes it a definition or a field",
        ("f(x)\n", "x\n", "model A():\n    f(x)\n", "model A():\n    x\n"),
    ),
    Example(
        "a model has no such statement",
        "a model has fields (name: type = initialiser), names (name = value) and functions",
        (
            "model A():\n    return x\n",
            "model A():\n    for i in x:\n        y\n",
            "model A():\n    with x:\n        y\n",
        ),
    ),
    Example(
        "a recipe has no such line",
        "a recipe has lines 'name = value', and may have functions",
        (
            "train A():\n    return x\n",
            "train A():\n    for i in x:\n        y\n",
            "train A():\n    if x:\n        y\n",
            "train A():\n    with x:\n        y\n",
            "train A():\n    assert x\n",
            "train A():\n    f(x)\n",
            "train A():\n    x: y = 1\n",
        ),
    ),
    Example(
        "the patterns of a recipe are texts",
        'as in \'optimizer["*.bias", "*norm*"] = ...\'',
        ("train A():\n    optimizer[x] = y\n", "train A():\n    optimizer[] = y\n"),
    ),
    Example(
        "only parameters and the fields of a model have types",
        "leave the type out; 'to(x, {data: S(0)})' gives a value a layout",
        (
            "def f(x):\n    y: f32[3] = x\n",
            "def f(x):\n    y[i]: f32[3] = x\n",
            "x: f32[3] = 1\n",
        ),
    ),
    Example(
        "a buffer has a type",
        "as in 'buffer mean: f32[channels] = zeros()'",
        ("model A():\n    buffer x = 1\n", "model A():\n    buffer x\n"),
    ),
    Example(
        "a parameter cannot be starred",
        "let it be a list: def f(tensors)",
        (
            "def f(*x):\n    return x\n",
            "def f(a, *x):\n    return x\n",
            "def f(**x):\n    return x\n",
            "def f(a, **x):\n    return x\n",
            "op f(*x: T[N]) -> T[N]:\n    return x\n",
            "op f(a: T[N], *x: T[N]) -> T[N]:\n    return x\n",
        ),
    ),
    Example(
        "braces hold a layout, and this is none",
        "as in '{data: S(0), model: B}'; there are no dictionaries and no sets",
        (
            "x = {1: 2}\n",
            'x = {"a": 2}\n',
            "x = {a: 2}\n",
            'x = {a: "b"}\n',
            "x = {a, b}\n",
            "x = {a}\n",
            "x = {a for a in b}\n",
            "x = {a: f.b}\n",
            "x = {**a}\n",
            "x = {*a}\n",
        ),
    ),
    Example(
        "imported names are listed",
        "as in 'from blocks import Block, make as build'",
        ("from x import *\n",),
    ),
    Example(
        "the name of a module does not begin with a dot",
        "modules are found beside the program: 'from blocks import Block'",
        ("from .x import y\n", "from . import y\n"),
    ),
    Example(
        "parentheses follow the name, even if there is nothing to put in them",
        "as in 'model Name():'",
        (
            "model A:\n    x = 1\n",
            "train A:\n    x = 1\n",
            "def f:\n    return 1\n",
            "op f -> T[N]:\n    return 1\n",
        ),
    ),
    Example(
        "keyword arguments cannot be spread",
        "write them out: f(name=value)",
        ("y = f(**x)\n", "y = f(a, **x)\n"),
    ),
    Example(
        "a target is a name",
        "as in 'for a, b in pairs:'",
        (
            "def f(x):\n    for y[0] in x:\n        z\n",
            "def f(x):\n    for y.z in x:\n        z\n",
            "def f(x):\n    for 1 in x:\n        z\n",
        ),
    ),
)
