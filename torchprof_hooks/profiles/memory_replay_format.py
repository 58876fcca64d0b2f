"""Memory replays as plain JSON types."""

from __future__ import annotations

from typing import Any, get_args

from torchprof_hooks.profiles.checked import (
    checked_integer,
    checked_text,
)
from torchprof_hooks.profiles.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
)
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_outputs import Output, OutputKind
from torchprof_hooks.profiles.step_trace import TensorType


def to_json(replay: MemoryReplay) -> dict[str, Any]:
    """The content of a replay.

    Example::

        {"step": 3, "unowned_bytes": 0,
         "devices": [{"device": "cpu", "as_run_bytes": ..., ...}],
         "rows": [{"module": "Net", "phase": "forward", "operation": "aten::add",
                   "outputs": [["c", 12, "float32", [3]], ["v", 0]],
                   "times": 1}]}

    An output is its kind and bytes, and dtype and shape, if they are known.
    """
    return {
        "step": replay.step,
        "unowned_bytes": replay.unowned_bytes,
        "devices": [device._asdict() for device in replay.devices],
        "rows": [
            {**row._asdict(), "outputs": [_output_to_json(o) for o in row.outputs]}
            for row in replay.rows
        ],
    }


def from_json(content: Any) -> MemoryReplay:
    """The replay that `to_json` has made `content` of.

    Raises:
        ValueError: it is something else.
    """
    try:
        return MemoryReplay(
            checked_integer(content["step"]),
            tuple(map(_device, content["devices"])),
            tuple(map(_row, content["rows"])),
            checked_integer(content["unowned_bytes"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a memory replay is damaged: {error!r}") from error


def _output_to_json(output: Output) -> list[Any]:
    kind, tensor, size_bytes = output
    if tensor is None:
        return [kind, size_bytes]
    return [kind, size_bytes, tensor.dtype, list(tensor.shape)]


def _device(fields: dict[str, Any]) -> DeviceReplay:
    return DeviceReplay(
        device=checked_text(fields["device"]),
        as_run_bytes=checked_integer(fields["as_run_bytes"]),
        without_inplace_bytes=checked_integer(fields["without_inplace_bytes"]),
        without_freeing_bytes=checked_integer(fields["without_freeing_bytes"]),
        module=checked_text(fields["module"]),
        phase=_phase(fields["phase"]),
        operation=checked_text(fields["operation"]),
    )


def _row(fields: dict[str, Any]) -> OutputRow:
    return OutputRow(
        checked_text(fields["module"]),
        _phase(fields["phase"]),
        checked_text(fields["operation"]),
        tuple(_output(*each) for each in fields["outputs"]),
        checked_integer(fields["times"]),
    )


def _output(
    kind: OutputKind, size_bytes: int, dtype: str = "", shape: Any = None
) -> Output:
    if kind not in get_args(OutputKind):
        raise ValueError(f"{kind!r} is no kind of output")
    tensor = None
    if shape is not None:
        tensor = TensorType(checked_text(dtype), tuple(map(checked_integer, shape)))
    return Output(kind, tensor, checked_integer(size_bytes))


def _phase(value: Any) -> Phase:
    if value not in get_args(Phase):
        raise ValueError(f"{value!r} is no phase")
    phase: Phase = value
    return phase
