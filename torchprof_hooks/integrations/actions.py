"""How long the actions of a trainer took, by their names."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from torchprof_hooks.reports.table import TextColumn, plural, table_lines
from torchprof_hooks.reports.units import format_times

#: Rows of the table.
_ROWS: Final = 20
_WIDTH: Final = 120


def _own_time_first(item: tuple[str, tuple[int, int, int]]) -> tuple[int, int, str]:
    name, (_, total_ns, own_ns) = item
    return -own_ns, -total_ns, name


class Actions:
    """Adds up the times of nested actions. They are no rows of the profile: there, own
    time of a block would count as forward."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []  # names, and when they began
        self._inside: list[int] = []  # nanoseconds of actions inside of each of these
        self._times: dict[str, tuple[int, int, int]] = {}  # calls, total, own

    def begin(self, name: str) -> None:
        """An action begins."""
        self._open.append((name, perf_counter_ns()))
        self._inside.append(0)

    def end(self, name: str) -> None:
        """An action ends, and with it those inside that an exception has left open. One
        that has not begun is ignored."""
        if all(name != each for each, _ in self._open):
            return
        now_ns = perf_counter_ns()
        while True:
            ended, began_ns = self._open.pop()
            inside_ns, total_ns = self._inside.pop(), now_ns - began_ns
            calls, total, own = self._times.get(ended, (0, 0, 0))
            self._times[ended] = calls + 1, total + total_ns, own + total_ns - inside_ns
            if self._inside:
                self._inside[-1] += total_ns
            if ended == name:
                return

    def is_outermost(self, name: str) -> bool:
        """Whether this action is open, and no other one."""
        return bool(self._open) and self._open[0][0] == name and len(self._open) == 1

    def table(self) -> str:
        """Calls, times with inner actions, and own times; the largest own time first.

        Example::

            action of Lightning                   calls     total       own
            [Strategy]SingleDeviceStrategy.bac...   100   9.81sec   9.81sec
            run_training_batch                      100  16.20sec   0.03sec
        """
        ranked = sorted(self._times.items(), key=_own_time_first)
        shown = ranked[:_ROWS]
        columns = [
            TextColumn("calls", [str(calls) for _, (calls, _, _) in shown]),
            TextColumn("total", format_times([t for _, (_, t, _) in shown], "auto")),
            TextColumn("own", format_times([own for _, (_, _, own) in shown], "auto")),
        ]
        labels = ["action of Lightning", *(name for name, _ in shown)]
        lines = list(table_lines(labels, columns, _WIDTH))
        if len(ranked) > len(shown):
            lines.append(f"... {plural(len(ranked) - len(shown), 'more action')}")
        return "\n".join(lines)
