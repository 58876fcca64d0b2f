"""The section Tips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import wrap
from typing import Final

from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.reports.program.tips.attention import eager_attention
from torchprof_hooks.reports.program.tips.compiling import (
    compile_failures,
    compile_time,
    graph_breaks,
    recompiles,
)
from torchprof_hooks.reports.program.tips.evidence import Evidence, Tip
from torchprof_hooks.reports.program.tips.loop import (
    code_outside,
    data_loading,
    reads_from_device,
    small_functions,
    waiting_for_others,
)
from torchprof_hooks.reports.program.tips.settings import (
    anomaly_detection,
    recomputing,
    unfused_optimizers,
)
from torchprof_hooks.reports.program.tips.types import (
    autocast_inference,
    double_precision,
    unaligned_sizes,
    unused_tf32,
)

Finder = Callable[[Evidence], Iterator[Tip]]

#: In the order in which they are shown.
_FINDERS: Final[tuple[Finder, ...]] = (
    data_loading,
    waiting_for_others,
    reads_from_device,
    code_outside,
    anomaly_detection,
    graph_breaks,
    recompiles,
    compile_failures,
    compile_time,
    unfused_optimizers,
    eager_attention,
    recomputing,
    double_precision,
    unused_tf32,
    autocast_inference,
    unaligned_sizes,
    small_functions,
)
_WIDEST: Final = 100


def find_tips(program: ProgramProfile) -> list[Tip]:
    """What the numbers of a program suggest."""
    evidence = Evidence(program)
    return [tip for find in _FINDERS for tip in find(evidence)]


def tips_lines(program: ProgramProfile, width: int) -> Iterator[str]:
    """The lines of the section; a tip is there only if its condition holds.

    Times by function are estimates for all steps, and so are called "about".
    """
    tips = find_tips(program)
    for tip in tips:
        yield from wrap(
            str(tip),
            min(width, _WIDEST),
            initial_indent="  - ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if not tips:
        yield "  None: nothing that is looked for was found."
