from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
)
from torchprof_hooks.profiles.trace.step_outputs import Output, OutputKind
from torchprof_hooks.profiles.trace.step_trace import TensorType
from torchprof_hooks.reports.program.memory import memory_section

KB = 1024
MB = 1024 * KB

SUMMARY = MemorySummary("cpu", True, 12 * MB, ("Net", "Net.body", "linear"), "backward")


def output(
    kind: OutputKind, size_bytes: int, *shape: int, dtype: str = "float32"
) -> Output:
    return Output(kind, TensorType(dtype, shape), size_bytes)


def row(
    module: str, phase: Phase, name: str, *outputs: Output, times: int = 1
) -> OutputRow:
    return OutputRow(module, phase, name, outputs, times)


DEVICE = DeviceReplay(
    "cpu", 4104 * KB, 8 * MB, 8208 * KB, "Net.body", "forward", "aten::sum"
)
ROWS = (
    row(
        "Net.body",
        "forward",
        "aten::outer",
        output("c", 4 * MB, 1024, 1024),
        times=2,
    ),
    row(
        "(outside modules)",
        "outside",
        "aten::topk",
        output("c", 6 * KB, 2, 768),
        output("c", 6 * KB, 2, 768),
        output("c", 8, dtype="int64"),
        output("v", 4, 1),
        output("i", 4, 1),
        Output("c", None, 4),
    ),
    row("(optimizer) SGD", "optimizer", "aten::add_", output("i", 4 * KB, 1024)),
    row("Net.head", "backward", "TBackward0", output("v", 1 * KB, 8, 32), times=3),
    row("Net.head", "backward", "ViewBackward0", Output("v", None, 0)),
)
REPLAY = MemoryReplay(7, (DEVICE,), ROWS)


def section(
    summary: MemorySummary | None = SUMMARY,
    replay: MemoryReplay | None = REPLAY,
    **options: Any,
) -> str:
    given: dict[str, Any] = {"max_rows": 20, "min_size": 0, "width": 120, **options}
    return memory_section(summary, replay, **given)


def test_the_whole_section() -> None:
    assert section(max_rows=3, width=200) == (
        """\
Memory Profile
---
   Peak of the allocator: at least 12.00MB in the process, in Net.body: linear \
(backward)
   Peak of the outputs of operations in step 7, replayed:
     cpu: 4.01MB as it ran, set by Net.body: aten::sum (forward)
          8.00MB if writes in place made new tensors
          8.02MB if nothing was freed
<sum of outputs> <#call> <outputs>                                <created/inplace/view> <phase>   <operation, by the module around it>
          4.00MB       2 float32[1024, 1024]                      c                      forward   Net.body: aten::outer
         12.02KB       1 2 * float32[2, 768], int64[], float32[1], ... c, c, v, ...           outside   aten::topk
          4.00KB       1 float32[1024]                            i                      optimizer (optimizer) SGD: aten::add_
   ... (remaining 4 operations account for 3.00KB of outputs)
   Left out of the replay: what was there before the step, and what an operation frees itself (an autograd node, a custom Function or a compiled region is one).
   c: created, i: written in place, v: view, as torch declares; ?: not taken by any operation, so not known."""  # noqa: E501
    )


def table(text: str) -> list[str]:
    """The lines from the one below the headers on."""
    lines = text.splitlines()
    headers = [line for line in lines if line.startswith("<sum of outputs>")]
    return lines[lines.index(headers[0]) + 1 :]


def test_rows_of_less_than_the_least_size_are_in_the_remainder() -> None:
    lines = table(section(min_size=4 * KB))
    assert [line.split()[0] for line in lines[:3]] == ["4.00MB", "12.02KB", "4.00KB"]
    assert lines[3] == "   ... (remaining 4 operations account for 3.00KB of outputs)"


def test_nothing_remains() -> None:
    lines = table(section())
    assert len(lines) == 5 + 2
    assert not [line for line in lines if "remaining" in line]


def test_none_is_large_enough() -> None:
    lines = section(min_size=8 * MB).splitlines()
    assert lines[7:9] == [
        "   (the outputs of every operation are less than 8.00MB)",
        # 8 MB, 12 KB and 16 bytes (rounded), 4 KB, 3 KB
        "   ... (remaining 8 operations account for 8.02MB of outputs)",
    ]


def test_lines_are_cut_at_the_width() -> None:
    lines = section(width=60).splitlines()
    assert max(map(len, lines)) == 60
    assert lines[2] == "   Peak of the allocator: at least 12.00MB in the process, i"


def allocator_line(summary: MemorySummary | None) -> str:
    return section(summary).splitlines()[2].removeprefix("   Peak of the allocator: ")


def test_the_peak_that_the_allocator_measured() -> None:
    def measured(*path: str, phase: Phase) -> str:
        return allocator_line(MemorySummary("cuda:0", False, 3 * MB, path, phase))

    assert measured("Net", "Net.a", phase="backward") == (
        "3.00MB on cuda:0, in Net.a (backward)"
    )
    assert measured("Net", phase="forward") == "3.00MB on cuda:0, in Net (forward)"
    assert measured("(optimizer) SGD", phase="optimizer") == (
        "3.00MB on cuda:0, in (optimizer) SGD"
    )
    assert measured(phase="outside") == "3.00MB on cuda:0, in (outside modules)"


def test_why_the_allocator_was_not_measured() -> None:
    assert allocator_line(None) == "not measured"
    summary = MemorySummary(unavailable="this C library does not tell")
    assert allocator_line(summary) == "not measured: this C library does not tell"
    partly = MemorySummary("cpu", True, KB, ("Net",), "forward", "no glibc")
    assert allocator_line(partly) == (
        "at least 1.00KB in the process, in Net (forward) "
        "(in a part of the run not measured: no glibc)"
    )


def test_why_there_is_no_replay() -> None:
    assert section(replay=None, reason="another profiler was running") == (
        """\
Memory Profile
---
   Peak of the allocator: at least 12.00MB in the process, in Net.body: linear \
(backward)
   No step was replayed: another profiler was running"""
    )
    assert section(replay=None).endswith("\n   No step was replayed")


def test_several_devices() -> None:
    nothing = DeviceReplay("cuda:0", 0, 4 * KB, 0, "(outside modules)", "outside", "")
    lines = section(replay=MemoryReplay(7, (DEVICE, nothing), ROWS)).splitlines()
    assert lines[7:10] == [
        "     cuda:0: 0.00B as it ran",
        "             4.00KB if writes in place made new tensors",
        "             0.00B if nothing was freed",
    ]


def test_a_step_in_which_nothing_was_returned() -> None:
    lines = section(replay=MemoryReplay(7, (), ())).splitlines()
    assert lines[3:5] == [
        "   Peak of the outputs of operations in step 7, replayed:",
        "     no operation has allocated anything",
    ]
    assert not [line for line in lines if "remaining" in line]


def test_what_no_operation_has_allocated() -> None:
    last = section(replay=MemoryReplay(7, (DEVICE,), ROWS, 960)).splitlines()[-1]
    assert (
        last == "   960.00B were allocated by no operation, and are left out as well."
    )


def test_memory_of_tensors_is_not_that_of_the_process() -> None:
    exact = replace(SUMMARY, is_net=False)
    text = memory_section(exact, None, max_rows=3, min_size=0, width=120)
    assert "allocator: 12.00MB of tensors on the CPU, in Net.body: linear" in text
