"""What is in files of profiles otherwise than field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.fields import INLINE, Length
from torchprof_hooks.profiles.files.codec import DamageError, wrong
from torchprof_hooks.profiles.files.schema import Record, Schema
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_outputs import Output
from torchprof_hooks.profiles.step_trace import TensorType
from torchprof_hooks.profiles.totals import Totals

#: Names in a path: calls inside of each other. Python allows some hundred calls of
#: modules, unless it was told otherwise; nothing that reads a profile calls itself.
DEEPEST: Final = 10_000


class Cell(NamedTuple):
    """A cell, as an object of its own."""

    path: Annotated[tuple[str, ...], Length(1, DEEPEST)]
    phase: Phase
    totals: Annotated[Totals, INLINE]


class _Cells:
    """Cells as a list: JSON has only texts as keys."""

    def __init__(self, schema: Schema) -> None:
        self._list = schema.of(tuple[Cell, ...])

    def encode(self, value: Mapping[CellKey, Totals]) -> list[Any]:
        cells = (Cell(*key, totals) for key, totals in value.items())
        content: list[Any] = self._list.encode(cells)
        return content

    def decode(self, content: Any) -> dict[CellKey, Totals]:
        cells: dict[CellKey, Totals] = {}
        for number, (path, phase, totals) in enumerate(self._list.decode(content)):
            if (path, phase) in cells:
                problem = "has the path and the phase of another cell"
                raise DamageError(problem).inside(f"[{number}]")
            cells[path, phase] = totals
        return cells


class _Outputs:
    """An output as a list, ``["c", 12, "float32", [3]]``, or ``["v", 0]`` where its
    type is not known: there are many."""

    def __init__(self, schema: Schema) -> None:
        self._record = Record(schema, Output)

    def encode(self, value: Output) -> list[Any]:
        kind, tensor, size_bytes = value
        if tensor is None:
            return [kind, size_bytes]
        return [kind, size_bytes, tensor.dtype, list(tensor.shape)]

    def decode(self, content: Any) -> Any:
        if type(content) is not list or len(content) not in (2, 4):
            raise wrong(content, "a list of kind, bytes and, if known, dtype and shape")
        kind, size_bytes, *type_fields = content
        tensor = dict(zip(TensorType._fields, type_fields, strict=False))
        fields = {"kind": kind, "size_bytes": size_bytes, "tensor": tensor or None}
        return self._record.decode(fields)


#: Of all that is in files.
SCHEMA: Final = Schema({Mapping[CellKey, Totals]: _Cells, Output: _Outputs})
