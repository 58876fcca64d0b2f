"""Modules in forward, backward and recompute, on a track of their own.

Not on the thread's track: a module's backward begins and ends inside of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.profiles.trace.step_trace import ModuleSpan, StepTrace
from torchprof_hooks.reports.chrome_trace.events import Place

#: Added to the number of a thread, it gives that of the track of its modules. Systems
#: do not number threads that high.
MODULE_TRACK: Final = 1_000_000_000


def module_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """The step, and inside of it the modules."""
    track = Place(trace.process, MODULE_TRACK + trace.thread, base_ns)
    yield track.metadata("thread_name", '{"name":"modules"}')
    yield track.metadata("thread_sort_index", f'{{"sort_index":{trace.thread - 1}}}')
    yield track.span(f"step {trace.step}", "step", trace.start_ns, trace.end_ns)
    for span in trace.modules:
        args = {"class": span.kind} if span.kind else {}
        yield track.span(_label(span), span.phase, span.start_ns, span.end_ns, **args)


def _label(span: ModuleSpan) -> str:
    is_plain = span.phase == "forward" or not span.kind  # "(optimizer) SGD"
    return span.name if is_plain else f"{span.name} {span.phase}"
