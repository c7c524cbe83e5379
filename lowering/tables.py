"""What building a Plan needs to know of its programs, and the tables that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from anabranch.ir import plan as p
from anabranch.ir.core import Function, Value
from anabranch.ir.diagnostics import Loc
from anabranch.ir.launch import LaunchSpec
from anabranch.ir.mesh import MICRO, Mesh
from anabranch.ir.sbp import Layout, local_box
from anabranch.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ProgramIR:
    """One program after fusion. `boxed` still has layouts and names the arguments; `locals` has
    a function for every rank. `mesh` includes `micro`; `results` name what the function returns."""

    name: str
    boxed: Function
    locals: tuple[Function, ...]
    mesh: Mesh
    results: tuple[str, ...]
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Prices:
    """Predicted seconds of a kernel launch and of a transfer (bytes, members)."""

    launch: Callable[[LaunchSpec], float]
    transfer: Callable[[int, int], float]


@dataclass(slots=True)
class Tables:
    """The shared tables of a Plan while it is built: each entry once, found by its content."""

    values: dict[p.Value, int] = field(default_factory=dict)
    kernels: dict[str, p.Kernel] = field(default_factory=dict)
    sources: list[p.Source] = field(default_factory=list)
    texts: dict[tuple[str, str], int] = field(default_factory=dict)
    comms: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    locs: dict[p.Loc, int] = field(default_factory=lambda: {p.Loc(): 0})
    states: dict[str, p.State] = field(default_factory=dict)
    state_bytes: list[int] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)  # digests of kernels that check no index

    def value(self, name: str, type: TensorType, stage: int) -> int:
        sbps = () if type.layout is None else tuple(
            str(s).replace("(", "").replace(")", "") if s.kind == "S" else
            f"P({s.op})" if s.kind == "P" else "B" for s in type.layout.sbps())
        record = p.Value(name, type.dtype, type.shape, sbps, stage)
        return self.values.setdefault(record, len(self.values))

    def kernel(self, spec: LaunchSpec) -> int:
        text = spec.kernel
        if text.digest not in self.kernels:
            language = {"reference": "json"}.get(text.kind, text.kind)
            source = self.source(text.symbol, language, text.source)
            body = self.source(text.symbol, "json", text.body)
            params = ("ptr",) * len(spec.pointers) + ("int",) * len(spec.ints)
            params += ("f64",) * len(spec.floats)
            self.kernels[text.digest] = p.Kernel(
                len(self.kernels), text.kind, text.symbol, source, params, body)
        return self.kernels[text.digest].id

    def source(self, name: str, language: str, text: str) -> int:
        """The number of a text, -1 if it is empty. Equal texts are one."""
        if not text:
            return -1
        if (language, text) not in self.texts:
            self.texts[language, text] = len(self.sources)
            self.sources.append(p.Source(name, language, text))
        return self.texts[language, text]

    def comm(self, ranks: tuple[int, ...], kind: str) -> int:
        return self.comms.setdefault((ranks, kind), len(self.comms))

    def loc(self, loc: Loc) -> int:
        return self.locs.setdefault(p.Loc(loc.file, loc.line, loc.path, loc.col), len(self.locs))


def shard_of(
    type: TensorType, mesh: Mesh, rank: int, micro: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(local shape, origin) of a value on a rank, for a micro-batch."""
    inner = mesh.inner
    place = dict(zip(mesh.names, mesh.position(rank, micro), strict=True))
    position = tuple(place[name] for name in inner.names)
    return local_box(type.shape, type.layout or Layout(), inner, position)


def origin_of(value: Value, mesh: Mesh, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(origin for micro-batch 0, how far it moves with each further one)."""
    _, start = shard_of(value.type, mesh, rank)
    if mesh.micro == 1:
        return start, ()
    _, following = shard_of(value.type, mesh, rank, 1)
    return start, tuple(b - a for a, b in zip(start, following, strict=True))


def without_micro(type: TensorType) -> TensorType:
    layout = type.layout or Layout()
    return type.with_layout(Layout(tuple(e for e in layout.entries if e[0] != MICRO)))


def nbytes_of(type: TensorType, local: Iterable[int]) -> int:
    return type.with_layout(None).with_shape(tuple(local)).nbytes
