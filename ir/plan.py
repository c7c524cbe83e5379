"""The Plan: everything a run needs, as plain data in one file.

A `Plan` is made of frozen dataclasses, tuples, numbers and strings; it imports only the standard
library, so that the runtime can load and run one without the compiler. The promises:

- `Plan.load(path)` gives back a plan equal to the one that `save(path)` was called on;
- a file that is foreign, truncated, damaged or of another version is refused with a `PlanError`
  that says which; nothing of it is used;
- every `id` is the position of the thing in its tuple, and consumers are stored on the register
  and nowhere else.

How a plan is executed (when an actor fires, what a slot is, why it cannot hang) is written in
runtime/README.md; `runtime.check` proves a plan safe before it runs.

File: magic (16 bytes), version (u32), header length (u64), sha256 of that length and the rest, a
JSON header, then the texts of kernels one after another. Each record is a JSON list of its fields
in order; the header names the fields of every record, so two layouts never pass for each other.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import tempfile
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any

VERSION = 2
MAGIC = b"ANABRANCH PLAN\r\n"
_PREFIX = struct.Struct("<16sIQ32s")

Text = Annotated[str, "blob"]
"""A string that travels as a blob behind the header: long, and not worth reading as JSON."""

DTYPE_BYTES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "bool": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1,
}  # fmt: skip


class PlanError(Exception):
    """A plan file or a plan that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Loc:
    """A source line and the path of definitions that led there."""

    file: str = ""
    line: int = 0
    path: str = ""
    col: int = 0

    def __str__(self) -> str:
        place = f"{Path(self.file).name}:{self.line}" if self.line else Path(self.file).name
        return f"{place} {self.path}".strip()


@dataclass(frozen=True, slots=True)
class Value:
    """A logical tensor. `sbp` has one entry per axis of its stage's mesh: "S0", "B", "P(sum)"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sbp: tuple[str, ...] = ()
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """`actor` reads each token of a register for `hold` of its firings, then acknowledges it.

    A donating use is the one writer of a state: it overwrites what it reads.
    """

    actor: int
    hold: int = 1
    donate: bool = False


@dataclass(frozen=True, slots=True)
class Register:
    """The bytes of one value on one rank, times `slots`; written by `producer`, read by `uses`.

    `hold` firings of the producer write one token in place (an accumulator holds `micro`).
    `initial` tokens are present between runs: 1 for a state, else 0. Producer -1 is a state that
    nobody writes in this program. `origin` is where the shard begins in the logical value for
    micro-batch 0; micro-batch k begins at `origin + k * advance`.
    Kinds: data | state | control (no bytes, only order).
    """

    id: int
    rank: int
    arena: int
    value: int
    local: tuple[int, ...]
    origin: tuple[int, ...]
    producer: int
    uses: tuple[Use, ...]
    hold: int = 1
    slots: int = 1
    nbytes: int = 0
    offsets: tuple[int, ...] = ()
    initial: int = 0
    kind: str = "data"
    advance: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument of a kernel.

    reg      pointer to register `a` (the slot of this firing) plus `b` bytes
    scratch  pointer to `a` bytes into the scratch of the actor's stream
    int      a + b * k, where k is the firing within the step: extents, strides, origins
    step     a + the step
    seed     a + the seed of the session
    f64      the double whose bits are `a`

    A kernel gets its pointers, its integers and its doubles each in the order of its arguments.
    """

    kind: str
    a: int = 0
    b: int = 0


def float_arg(number: float) -> Arg:
    """A double as an argument; bits, so that nan and infinities survive JSON."""
    return Arg("f64", struct.unpack("<q", struct.pack("<d", number))[0])


def float_of(arg: Arg) -> float:
    return float(struct.unpack("<d", struct.pack("<q", arg.a))[0])


@dataclass(frozen=True, slots=True)
class Check:
    """An index that a launch checks, in words of the program: it is in [0, size), comes from the
    tensor `index`, and is a place along dimension `axis` of `table`. What has no name is empty."""

    size: int
    index: str = ""
    table: str = ""
    axis: int = 0
    loc: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel call inside an actor. `tiles` is its grid, a function of shapes only.

    0 tiles: an empty shard, nothing runs. -1: a library kernel says itself how it is cut.
    `tile_scratch`: bytes a thread needs while it runs one tile.
    `phase`: all | first | rest | last firing of the step (store / add / finish an accumulator).
    """

    kernel: int
    args: tuple[Arg, ...]
    tiles: int = 1
    phase: str = "all"
    tile_scratch: int = 0
    flops: int = 0
    bytes: int = 0
    loc: int = 0
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One rank's part of a collective or of a send and its recv, over flat buffers.

    `match` is the id of the joint transition, equal on all members. `source` and `target` are the
    registers read and written, -1 where there is none. Counts are elements and may be 0:

    all_gather      counts[i]: what member i gives; everyone gets all of them in member order
    reduce_scatter  counts[i]: what member i gets; everyone gives the sum of them
    all_reduce      counts = (n,): everyone gives and gets n
    all_to_all      counts[i]: what I give to member i; counts_back[i]: what I get from it
    send, recv      counts = (n,): member 0 of a channel sends, member 1 receives

    `reduce`: sum | prod | max | min; max and min give nan if any member has one.
    """

    match: int
    op: str
    comm: int
    member: int
    dtype: str
    counts: tuple[int, ...]
    source: int = -1
    target: int = -1
    reduce: str = ""
    counts_back: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Actor:
    """What fires: a chain of launches, one transfer, or the border to the host.

    Kinds: chain | comm | feed | fetch. `fires` per step is 1 or the number of micro-batches.
    On a stream without a sequence the ready actor with least (`priority`, id) fires first.
    """

    id: int
    name: str
    rank: int
    stream: int
    kind: str
    fires: int = 1
    priority: int = 0
    launches: tuple[Launch, ...] = ()
    transfer: Transfer | None = None
    scratch: int = 0
    seconds: float = 0.0
    loc: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Firing (src, i) of step s precedes (dst, j) of step s + dist, on one rank; `why` is read
    by people: "reuses the bytes of %h"."""

    src: int
    i: int
    dst: int
    j: int
    dist: int
    why: str


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of firings on one rank: kinds cpu | cuda | comm | io.

    `sequence` is ((actor, k), ...) of one step, repeated; () means ready order, which comm
    streams may not have. Its scratch, the largest of its actors', lies in `arena` at `offset`.
    """

    id: int
    rank: int
    kind: str
    device: str = "cpu"
    sequence: tuple[tuple[int, int], ...] = ()
    arena: int = 0
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Comm:
    """A communicator: a mesh-axis group, or a channel, the directed pair (source, target)."""

    id: int
    ranks: tuple[int, ...]
    kind: str = "group"


@dataclass(frozen=True, slots=True)
class Arena:
    """The one block of memory of a rank on a device: states first, then whatever a program
    needs; the regions of different programs overlap."""

    id: int
    rank: int
    device: str
    nbytes: int
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a state on one rank."""

    rank: int
    arena: int
    offset: int
    nbytes: int
    local: tuple[int, ...]
    origin: tuple[int, ...]


ADDED = {"optimizer": "moment", "ema": "average"}
"""The places of the states that training adds to a model's, and their kinds."""


@dataclass(frozen=True, slots=True)
class State:
    """A tensor that lives between runs; `name` is its dotted path and its key in checkpoints.

    `init` says in words how the init program fills it; `shards` has one entry per rank it is on.
    `kind`: parameter | moment | average | buffer.
    """

    name: str
    value: int
    init: str
    shards: tuple[Shard, ...]
    kind: str = "parameter"


@dataclass(frozen=True, slots=True)
class Port:
    """A named argument or result of a program: the registers that hold it, at most one a rank."""

    name: str
    value: int
    registers: tuple[int, ...]
    when: str = "step"


@dataclass(frozen=True, slots=True)
class Source:
    """Text of kernels. Languages: c | triton | json (the body of a reference kernel)."""

    name: str
    language: str
    text: Text


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function that launches call, shared by ranks and layers; extents are arguments.

    Kinds: c (`symbol` in the text `source`), triton, library (`symbol` is one of the runtime's
    library kernels), reference (interpreted). `body`, if not -1, is a json source with which a
    machine without a compiler can interpret the kernel. `params`: "ptr" | "int" | "f64" each.
    """

    id: int
    kind: str
    symbol: str
    source: int = -1
    params: tuple[str, ...] = ()
    body: int = -1


@dataclass(frozen=True, slots=True)
class Program:
    """One thing a plan can do for n steps: train, eval, init, generate.

    `seconds` is the predicted time of a step, `peak` the predicted bytes of each arena.
    `reader` describes, as JSON for the caller, where feeds come from.
    """

    name: str
    micro: int
    actors: tuple[Actor, ...]
    registers: tuple[Register, ...]
    streams: tuple[Stream, ...]
    edges: tuple[Edge, ...] = ()
    feeds: tuple[Port, ...] = ()
    fetches: tuple[Port, ...] = ()
    reader: str = ""
    seconds: float = 0.0
    peak: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Programs over shared states, communicators, arenas and kernels. `mesh` is ((name, size), …).

    `prelude` is C text put before the kernels of every translation unit. `locs[0]` is nowhere.
    `hints` say where the program does what its author may not have meant.
    """

    mesh: tuple[tuple[str, int], ...]
    ranks: int
    values: tuple[Value, ...]
    states: tuple[State, ...]
    kernels: tuple[Kernel, ...]
    sources: tuple[Source, ...]
    comms: tuple[Comm, ...]
    arenas: tuple[Arena, ...]
    programs: tuple[Program, ...]
    locs: tuple[Loc, ...] = (Loc(),)
    stages: int = 1
    seed: int = 0
    profile: str = ""
    source_digest: str = ""
    prelude: Text = ""
    hints: tuple[str, ...] = ()
    version: int = VERSION

    def __repr__(self) -> str:
        """In one line: in full it is the text of every kernel."""
        mesh = ", ".join(f"{name}={size}" for name, size in self.mesh)
        names = ", ".join(program.name for program in self.programs)
        return f"<Plan of {names} on Mesh({mesh}): {len(self.kernels)} kernels>"

    def program(self, name: str) -> Program:
        for program in self.programs:
            if program.name == name:
                return program
        names = ", ".join(p.name for p in self.programs)
        raise PlanError(f"the plan has no program {name!r}; it has {names}")

    @property
    def trains(self) -> bool:
        """Whether states are changed by steps; else they are only used."""
        return any(program.name == "train" for program in self.programs)

    def digest(self) -> str:
        """Equal for equal plans; ranks compare it before they start."""
        return hashlib.sha256(_encode_plan(self)[1]).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all."""
        header_bytes, payload = _encode_plan(self)
        checksum = _checksum(header_bytes, payload)
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_PREFIX.pack(MAGIC, self.version, header_bytes, checksum))
                file.write(payload)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        data = Path(path).read_bytes()
        if data[: len(MAGIC)] != MAGIC:
            raise PlanError(f"{path} is not a plan file: it does not begin as one does")
        if len(data) < _PREFIX.size:
            raise PlanError(f"{path} is truncated: it has {len(data)} bytes")
        _, version, header_bytes, checksum = _PREFIX.unpack_from(data)
        if version != VERSION:
            raise PlanError(f"{path} is a plan of version {version}; this reads version {VERSION}")
        payload = data[_PREFIX.size :]
        if _checksum(header_bytes, payload) != checksum:
            raise PlanError(f"{path} is truncated or damaged: its contents do not match its hash")
        return _decode_plan(payload, header_bytes, str(path))


# The codec is derived from the annotations above: adding a field needs no change here.


def _encode_plan(plan: Plan) -> tuple[int, bytes]:
    """The length of the header, and header and texts in one."""
    blobs: list[bytes] = []
    body = _writer(Plan)(plan, blobs)
    document = {"schema": _schema(), "blobs": [len(b) for b in blobs], "plan": body}
    header = json.dumps(document, separators=(",", ":")).encode()
    return len(header), b"".join([header, *blobs])


def _checksum(header_bytes: int, payload: bytes) -> bytes:
    return hashlib.sha256(header_bytes.to_bytes(8, "little") + payload).digest()


def _decode_plan(payload: bytes, header_bytes: int, path: str) -> Plan:
    document = json.loads(payload[:header_bytes])
    if document["schema"] != _schema():
        raise PlanError(f"{path} was written by another build: its records have other fields")
    blobs, start = [], header_bytes
    for size in document["blobs"]:
        blobs.append(payload[start : start + size])
        start += size
    plan: Plan = _reader(Plan)(document["plan"], blobs)
    return plan


def _schema() -> dict[str, list[str]]:
    records: dict[str, list[str]] = {}
    pending: list[Any] = [Plan]
    while pending:
        kind = pending.pop()
        if not _is_record(kind):
            pending += [k for k in typing.get_args(kind) if k is not Ellipsis]
        elif kind.__name__ not in records:
            records[kind.__name__] = [f"{f.name}: {f.type}" for f in fields(kind)]
            pending += _hints(kind)
    return dict(sorted(records.items()))


def _is_record(kind: Any) -> bool:
    return hasattr(kind, "__dataclass_fields__")


@functools.cache
def _hints(record: Any) -> tuple[Any, ...]:
    hints = typing.get_type_hints(record, include_extras=True)
    return tuple(hints[f.name] for f in fields(record))


@functools.cache
def _writer(kind: Any) -> Callable[[Any, list[bytes]], Any]:
    """How a value of the annotated type `kind` becomes JSON; texts are appended to the blobs."""
    if _is_record(kind):
        parts = [(f.name, _writer(h)) for f, h in zip(fields(kind), _hints(kind), strict=True)]
        return lambda v, blobs: [write(getattr(v, name), blobs) for name, write in parts]
    if kind is Text:
        return _write_text
    if isinstance(kind, UnionType):
        some = _writer(_optional(kind))
        return lambda v, blobs: None if v is None else some(v, blobs)
    if typing.get_origin(kind) is tuple:
        element, variadic = _elements(kind)
        if variadic:
            write_one = _writer(element[0])
            return lambda v, blobs: [write_one(x, blobs) for x in v]
        writers = [_writer(e) for e in element]
        return lambda v, blobs: [w(x, blobs) for w, x in zip(writers, v, strict=True)]
    return lambda v, blobs: v


@functools.cache
def _reader(kind: Any) -> Callable[[Any, list[bytes]], Any]:
    """The inverse of `_writer(kind)`."""
    if _is_record(kind):
        make: Any = kind
        readers = [_reader(h) for h in _hints(kind)]
        return lambda v, blobs: make(*[r(x, blobs) for r, x in zip(readers, v, strict=True)])
    if kind is Text:
        return lambda v, blobs: blobs[v].decode()
    if isinstance(kind, UnionType):
        some = _reader(_optional(kind))
        return lambda v, blobs: None if v is None else some(v, blobs)
    if typing.get_origin(kind) is tuple:
        element, variadic = _elements(kind)
        if variadic:
            read_one = _reader(element[0])
            return lambda v, blobs: tuple(read_one(x, blobs) for x in v)
        readers = [_reader(e) for e in element]
        return lambda v, blobs: tuple(r(x, blobs) for r, x in zip(readers, v, strict=True))
    return lambda v, blobs: v


def _write_text(text: str, blobs: list[bytes]) -> int:
    blobs.append(text.encode())
    return len(blobs) - 1


def _optional(kind: Any) -> Any:
    (some,) = [k for k in typing.get_args(kind) if k is not type(None)]
    return some


def _elements(kind: Any) -> tuple[tuple[Any, ...], bool]:
    """The element types of a tuple, and whether it is `tuple[T, ...]`."""
    arguments = typing.get_args(kind)
    variadic = arguments[-1] is Ellipsis
    return (arguments[:1] if variadic else arguments), variadic
