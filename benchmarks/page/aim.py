"""One thing that the benchmarks are to show, and how it is read from their results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Figures = Mapping[str, Any]
#: Measured values, each by what it was measured on ("" if there is but one).
Values = dict[str, float]

AT_MOST, AT_LEAST = operator.le, operator.ge
#: Workloads by the names that `bench_hooks.py` has for them.
LABELS: Final = {
    "gpt2": "GPT-2",
    "linear": "100 x Linear",
    "relu": "100 x ReLU",
}


@dataclass(frozen=True)
class Aim:
    """A figure that is to be at most, or at least, `target`.

    file: the benchmark that measures it.
    values: takes the figure out of what the benchmark has saved.
    show: how a value is written.
    """

    text: str
    file: str
    values: Callable[[Figures], Values]
    target: float
    comparison: Callable[[float, float], bool] = AT_MOST
    show: str = "{:.2f}"

    def row(self, figures: Figures | None) -> list[str]:
        """A line of the table: text, what was measured, and the verdict."""
        try:
            values = self.values(figures or {})
        except KeyError:  # not measured, or not on this machine
            values = {}
        shown = ", ".join(
            f"{self.show.format(value)} ({label})" if label else self.show.format(value)
            for label, value in values.items()
        )
        return [self.text, shown or "not measured", self._verdict(values)]

    def _verdict(self, values: Values) -> str:
        missed = [
            label
            for label, value in values.items()
            if not self.comparison(value, self.target)
        ]
        if not values:
            return ""
        if not missed:
            return "met"
        on = f" on {', '.join(missed)}" if len(missed) < len(values) else ""
        return f"missed{on}"


def one(*keys: str) -> Callable[[Figures], Values]:
    """The value under these keys, one inside of the other."""

    def values(figures: Figures) -> Values:
        found: Any = figures
        for key in keys:
            found = found[key]
        return {"": found}

    return values


def each(key: str, *names: str) -> Callable[[Figures], Values]:
    """The values of that key of each workload, or of those named."""
    return lambda figures: {
        LABELS.get(name, name): figures[name][key] for name in names or figures
    }


def worst(key: str, choose: Callable[..., str]) -> Callable[[Figures], Values]:
    """Of all workloads, the one with the largest (or smallest) value."""

    def values(figures: Figures) -> Values:
        if not figures:
            raise KeyError(key)
        name = choose(figures, key=lambda name: abs(figures[name][key]))
        return {name: abs(figures[name][key])}

    return values


def growth(
    key: str, more: str, less: str, value: str = "added_us"
) -> Callable[[Figures], Values]:
    """How many times the cost of few is the cost of many."""
    return lambda figures: {
        "": figures[key][more][value] / figures[key][less][value],
    }
