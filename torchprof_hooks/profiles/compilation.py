"""What torch.compile did in a program: its time, graphs and recompiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

#: What was compiled of a graph: its forward, its backward, or ("run") something while
#: it ran (autotuning, CUDA graphs).
GraphKind = Literal["forward", "backward", "run"]


class CompiledGraph(NamedTuple):
    """One compilation, of which torch has kept a record.

    function, place: the code that was compiled: "forward", "train.py:31".
    compile_id: torch's number of the compilation: that of the code comes first.
    start_ns: when it began, in nanoseconds since the epoch.
    ns: how long it took, in nanoseconds.
    recompile_reason: what had changed, if the code had been compiled before.
    failure: why torch gave up; "" if it did not. The code then runs as it was written.
    is_cached: whether torch has loaded code of it from a cache, instead of making it.
    """

    function: str
    place: str
    compile_id: str
    start_ns: int
    ns: int
    kind: GraphKind = "forward"
    recompile_reason: str = ""
    failure: str = ""
    is_cached: bool = False


class GraphBreak(NamedTuple):
    """Code that torch.compile left to Python, which splits a graph in two.

    place: the place of the code; "" if torch has forgotten it.
    times: how often torch.compile came upon it, in all compilations.
    """

    function: str
    place: str
    reason: str
    times: int

    @property
    def reasons(self) -> tuple[str, ...]:
        """Its reason, as `Reasons` have them."""
        return (self.reason,)


class Reasons(NamedTuple):
    """Why the code of a function was compiled again, or failed to compile.

    times: how often that happened.
    reasons: the different ones, the most frequent first.
    """

    function: str
    place: str
    times: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompilationSummary:
    """What torch.compile did.

    timed, timed_ns: how many compilations torch has timed, and how long they took.
    graphs: the last compilations: torch keeps records of 64, by default.
    first_ns: duration of the first of `timed`. If another summary has a different one,
        torch has restarted its counts in between.

    ``torch._dynamo.reset()`` clears `timed` and the places of graph breaks. The
    records and the reasons of graph breaks survive it.
    """

    timed: int = 0
    timed_ns: int = 0
    graphs: tuple[CompiledGraph, ...] = ()
    graph_breaks: tuple[GraphBreak, ...] = ()
    first_ns: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was compiled."""
        return not (self.compilations or self.graphs)

    @property
    def total_ns(self) -> int:
        """Nanoseconds in torch.compile, none of which counts twice. Compilations before
        ``torch._dynamo.reset()`` count as far as there are records of them."""
        recorded_ns = sum(graph.ns for graph in self.graphs if graph.kind != "run")
        return max(self.timed_ns, recorded_ns) + self.run_ns

    @property
    def run_ns(self) -> int:
        """Nanoseconds of compiling while graphs ran: `graphs` of the kind "run"."""
        return sum(graph.ns for graph in self.graphs if graph.kind == "run")

    @property
    def compilations(self) -> int:
        """How many compilations there were, at least."""
        return max(self.timed, self._recorded)

    @property
    def unrecorded(self) -> int:
        """How many compilations torch keeps no record of any more."""
        return self.compilations - self._recorded

    @property
    def recompiles(self) -> tuple[Reasons, ...]:
        """Code that was compiled again, the most often first."""
        kept = (graph for graph in self.graphs if not graph.failure)
        return _reasons((graph, graph.recompile_reason) for graph in kept)

    @property
    def failures(self) -> tuple[Reasons, ...]:
        """Code that could not be compiled, the most often first."""
        return _reasons((graph, graph.failure) for graph in self.graphs)

    @property
    def _recorded(self) -> int:
        return sum(graph.kind != "run" for graph in self.graphs)

    def since(self, earlier: CompilationSummary) -> CompilationSummary:
        """The difference to an `earlier` summary of the same process."""
        known = set(earlier.graphs)
        kept = replace(
            self,
            graphs=tuple(graph for graph in self.graphs if graph not in known),
            graph_breaks=_breaks_since(self.graph_breaks, earlier.graph_breaks),
        )
        if self.first_ns != earlier.first_ns or self.timed < earlier.timed:
            return kept  # torch has restarted its counts: all of `timed` is new
        return replace(
            kept,
            timed=self.timed - earlier.timed,
            timed_ns=self.timed_ns - earlier.timed_ns,
        )


def _reasons(found: Iterable[tuple[CompiledGraph, str]]) -> tuple[Reasons, ...]:
    by_code: dict[tuple[str, str], Counter[str]] = {}
    for graph, reason in found:
        if reason:
            code = graph.function, graph.place
            by_code.setdefault(code, Counter())[reason] += 1
    rows = [
        Reasons(*code, reasons.total(), tuple(dict(reasons.most_common())))
        for code, reasons in by_code.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.times))


def _breaks_since(
    now: Sequence[GraphBreak], earlier: Sequence[GraphBreak]
) -> tuple[GraphBreak, ...]:
    known = {each[:3]: each.times for each in earlier}
    left = (each._replace(times=each.times - known.get(each[:3], 0)) for each in now)
    return tuple(each for each in left if each.times > 0)
