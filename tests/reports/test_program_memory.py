from __future__ import annotations

from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
)
from torchprof_hooks.profiles.trace.step_outputs import Output, OutputKind
from torchprof_hooks.profiles.trace.step_trace import TensorType
from torchprof_hooks.reports.program.memory import memory_lines

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
    replay: MemoryReplay | None = REPLAY,
    reason: str = "",
    max_rows: int = 20,
    min_size: int = 0,
) -> str:
    known = {"linear": ModuleInfo("linear", "function")}
    profile = Profile(modules=known, memory=SUMMARY)
    strata = Strata(functions=Stratum(profile, 1))
    program = ProgramProfile("x", strata, 0, replay=replay, not_replayed=reason)
    lines = memory_lines(program, max_rows, min_size)
    return "\n".join(line.rstrip() for line in lines)


def test_the_whole_section() -> None:
    assert section(max_rows=3) == (
        """\
   memory of the process (C allocator, net: freed bytes are subtracted): peak at least \
12.00MB in Net.body: linear (backward)
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
    assert lines[5:7] == [
        "   (the outputs of every operation are less than 8.00MB)",
        # 8 MB, 12 KB and 16 bytes (rounded), 4 KB, 3 KB
        "   ... (remaining 8 operations account for 8.02MB of outputs)",
    ]


def test_why_there_is_no_replay() -> None:
    assert section(replay=None, reason="another profiler was running") == (
        """\
   memory of the process (C allocator, net: freed bytes are subtracted): peak at least \
12.00MB in Net.body: linear (backward)
   No step was replayed: another profiler was running"""
    )
    assert section(replay=None).endswith("\n   No step was replayed")


def test_several_devices() -> None:
    nothing = DeviceReplay("cuda:0", 0, 4 * KB, 0, "(outside modules)", "outside", "")
    lines = section(replay=MemoryReplay(7, (DEVICE, nothing), ROWS)).splitlines()
    assert lines[5:8] == [
        "     cuda:0: 0.00B as it ran",
        "             4.00KB if writes in place made new tensors",
        "             0.00B if nothing was freed",
    ]


def test_a_step_in_which_nothing_was_returned() -> None:
    lines = section(replay=MemoryReplay(7, (), ())).splitlines()
    assert lines[1:3] == [
        "   Peak of the outputs of operations in step 7, replayed:",
        "     no operation has allocated anything",
    ]
    assert not [line for line in lines if "remaining" in line]


def test_what_no_operation_has_allocated() -> None:
    last = section(replay=MemoryReplay(7, (DEVICE,), ROWS, 960)).splitlines()[-1]
    assert (
        last == "   960.00B were allocated by no operation, and are left out as well."
    )
