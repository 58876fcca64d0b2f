"""Which modules the operations of a traced step belong to."""

from __future__ import annotations

from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.step_trace import ModuleSpan, Operation, StepTrace


class Place(NamedTuple):
    """A module, or what else reports have rows for, in one phase."""

    module: str
    phase: Phase


OUTSIDE: Final = Place(OUTSIDE_NAME, "outside")


def find_places(trace: StepTrace) -> list[Place]:
    """For each operation, the innermost module that was running when it began.

    A module's backward begins and ends in hooks on autograd nodes, which the operation
    of a node is around; so there it counts when the node itself began. What other
    threads do, except for nodes, no module has asked for.
    """
    operations = trace.operations
    found = [OUTSIDE] * len(operations)
    coming = sorted(trace.modules, key=lambda span: (span.start_ns, -span.end_ns))
    coming.reverse()  # the next one last
    running: list[ModuleSpan] = []
    for number in sorted(range(len(operations)), key=lambda n: _begin(operations[n])):
        operation = operations[number]
        now_ns = _begin(operation)
        while coming and coming[-1].start_ns <= now_ns:
            running.append(coming.pop())
        while running and running[-1].end_ns < now_ns:
            running.pop()
        if running and (operation.thread == trace.thread or _is_node(operation)):
            found[number] = Place(running[-1].name, running[-1].phase)
    return found


def _begin(operation: Operation) -> int:
    node_ns = operation.node_start_ns
    return operation.start_ns if node_ns is None else node_ns


def _is_node(operation: Operation) -> bool:
    return operation.node is not None
