"""`with per_micro:`, statements that are made for each micro-batch on its own.

The body is elaborated for the first micro-batch as if it were the batch: whatever has rows of the
batch is cut down to the first of them. Then what depends on those rows is extended to all
micro-batches, by an index in front of the others, and what leaves the body is put together along
the batch again. The axis of time splits that index, so nothing in the body waits for the whole
batch. In a program without micro-batches the body is what it is anyway.

A buffer that gets a next value in the body gets it from one micro-batch after the other: the
statements that lead from its value to the next one are repeated for each, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.frontend.builder import Builder, letters
from anabranch.frontend.evaluate import Ambient, Frame, unsupported
from anabranch.frontend.extend import Extension, batch_axes, picked, together
from anabranch.frontend.values import Element, Tensor
from anabranch.ir.core import Op, Value
from anabranch.ir.diagnostics import Span, fail
from anabranch.ir.expr import Read, Var, reads
from anabranch.ir.ops import Return


@dataclass(slots=True)
class Parts:
    """A body under way. `names` and `states` are what stood before it, `axes` the axis of rows of
    the values that have one, `entries` what stands for whole values in the body."""

    builder: Builder
    span: Span
    names: dict[str, object]
    last: Op | None
    states: dict[str, Tensor]
    axes: dict[Value, int]
    entries: dict[Value, Tensor] = field(default_factory=dict)
    entered: dict[str, object] = field(default_factory=dict)

    # ---- Into the body

    def enter(self, value: object) -> object:
        """A value as the first micro-batch has it."""
        if isinstance(value, list):
            return [self.enter(each) for each in value]
        if isinstance(value, tuple):
            return tuple(self.enter(each) for each in value)
        if not isinstance(value, Tensor) or not self._has_rows(value):
            return value
        whole = self.builder.value(value)
        if whole.op is not None:
            self.axes |= batch_axes(whole.op, self.axes)
        return self._cut(whole) if whole in self.axes else value

    def _has_rows(self, x: Tensor) -> bool:
        return any(self.builder.valued(read.operand) in self.axes
                   for read in reads(x.element.expr))

    def _cut(self, whole: Value) -> Tensor:
        if whole not in self.entries:
            axis, shape, micro = self.axes[whole], whole.type.shape, self.builder.micro
            if shape[axis] % micro:
                raise fail(f"{micro} micro-batches cannot share the {shape[axis]} rows of "
                           f"'{whole.name}' evenly", self.span)
            names = letters(len(shape))
            sizes = [n // micro if d == axis else n for d, n in enumerate(shape)]
            read = Read(self.builder.number(whole), tuple(map(Var, names)))
            level = self.builder.tensor(whole).element.level
            made = self.builder.emit(
                Element(read, whole.type.dtype, level), tuple(zip(names, sizes, strict=True)),
                tuple((n,) for n in names), name=whole.name)
            self.entries[whole] = made
            self.axes[self.builder.value(made)] = axis
        return self.entries[whole]

    # ---- Out of the body

    def leave(self, frame: Frame, result: object) -> object:
        """Extend the body to all micro-batches; the names of the scope and the result, whole."""
        names = frame.scope.names
        made = {name: self._settled(value) for name, value in names.items()
                if value is not self.entered.get(name, self)}
        result = self._settled(result)
        body = self._body()
        stepped = _behind(body, set(self._changed(body).values()))
        self._check_steps(body, stepped)
        starts = {self.builder.value(entry): whole for whole, entry in self.entries.items()}
        extension = Extension(self.builder, self.axes, starts)
        for op in body:
            if op not in stepped:
                extension.extend(op, self.span)
        self._step(body, stepped, extension)
        names.update({name: self.names[name] for name in self.entered})
        gone = {value for op in stepped for value in op.results}
        names.update({name: self._whole(value, extension, gone, name)
                      for name, value in made.items()})
        result = self._whole(result, extension, gone, "")
        self._report(extension)
        self._erase(body, stepped, extension)
        return result

    def _settled(self, value: object) -> object:
        """A value with everything computed that depends on the micro-batch."""
        if isinstance(value, list):
            return [self._settled(each) for each in value]
        if isinstance(value, tuple):
            return tuple(self._settled(each) for each in value)
        return self.builder.materialise(value) if isinstance(value, Tensor) else value

    def _body(self) -> list[Op]:
        first = self.builder.function.body.first if self.last is None else self.last.next
        ops: list[Op] = []
        while first is not None:
            ops.append(first)
            first = first.next
        return ops

    def _changed(self, body: Sequence[Op]) -> dict[str, Value]:
        """What the buffers with next values were before."""
        arguments = {a.value.name: a.value for a in self.builder.function.states()}
        within = {value for op in body for value in op.results}
        return {path: self.builder.value(self.states[path]) if path in self.states
                else arguments[path]
                for path, now in self.builder.states.items() if now.value in within}

    def _check_steps(self, body: Sequence[Op], stepped: set[Op]) -> None:
        for op in body:
            if op not in stepped and any(v.op in stepped for v in op.operands):
                raise self._steered()

    def _steered(self) -> Exception:
        return unsupported("within 'per_micro' the value of a buffer that changes there is used "
                           "for something else than its next value", self.span)

    def _step(self, body: Sequence[Op], stepped: set[Op], extension: Extension) -> None:
        """Every buffer through all micro-batches, one after the other."""
        before = self._changed(body)
        now = dict(before)
        after = {path: self.builder.value(self.builder.states[path]) for path in before}
        for part in range(self.builder.micro):
            seen = {value: now[path] for path, value in before.items()}
            for op in body:
                if op in stepped:
                    operands = [seen[v] if v in seen else picked(v, part, extension)
                                for v in op.operands]
                    copy = self.builder.function.body.append(op.clone(operands))
                    seen.update(zip(op.results, copy.results, strict=True))
            now = {path: seen[v] if v in seen else picked(v, part, extension)
                   for path, v in after.items()}
        for path, value in now.items():
            self.builder.states[path] = self.builder.tensor(value)

    def _whole(self, value: object, extension: Extension, gone: set[Value], name: str) -> object:
        """A value as it stands behind the body: along the batch, if it has rows."""
        if isinstance(value, list):
            return [self._whole(each, extension, gone, name) for each in value]
        if isinstance(value, tuple):
            return tuple(self._whole(each, extension, gone, name) for each in value)
        made = value.value if isinstance(value, Tensor) else None
        if made is None or (made not in extension.new and made not in gone):
            return value
        if made in self.axes and made in extension.new:
            return self.builder.tensor(together(made, extension))
        error = self._steered() if made in gone else self._none(name)
        if not name:
            raise error

        def read(_: Frame) -> object:
            raise error

        return Ambient(read)

    def _none(self, name: str) -> Exception:
        what = f"'{name}'" if name else "what is returned"
        return fail(f"{what} has a value for each micro-batch, and none outside of 'per_micro'",
                    self.span, help="only what has rows of the batch leaves it")

    def _report(self, extension: Extension) -> None:
        """What was reported is the mean over micro-batches."""
        reports = self.builder.reports
        for name, (value, span) in reports.items():
            made = self.builder.value(value)
            if made in extension.new:
                reports[name] = (self.builder.tensor(extension.mean(made)), span)

    def _erase(self, body: Sequence[Op], stepped: set[Op], extension: Extension) -> None:
        for op in reversed(body):
            if op in stepped or any(v in extension.new for v in op.results):
                self.builder.forget(op)
                op.erase()


def opened(frame: Frame, span: Span) -> Parts:
    """Cut all that the scope has down to the first micro-batch."""
    builder = frame.builder
    axes = _rows(builder)
    for op in builder.function.body:
        axes |= batch_axes(op, axes)
    names = frame.scope.names
    parts = Parts(builder, span, dict(names), builder.function.body.last, dict(builder.states),
                  axes)
    for name, value in parts.names.items():
        entered = parts.enter(value)
        if entered is not value:
            names[name] = parts.entered[name] = entered
    return parts


def _rows(builder: Builder) -> dict[Value, int]:
    """The inputs that come in micro-batches: those as long as the first one."""
    inputs = [a.value for a in builder.function.arguments
              if a.role == "input" and a.value.type.rank]
    return {v: 0 for v in inputs if v.type.shape[0] == inputs[0].type.shape[0]}


def _behind(body: Sequence[Op], values: set[Value]) -> set[Op]:
    """The statements that depend on some values."""
    found: set[Op] = set()
    for op in body:
        if not isinstance(op, Return) and any(v in values or v.op in found for v in op.operands):
            found.add(op)
    return found

