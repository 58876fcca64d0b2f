"""Every tool on every case with planted work: right, wrong by how much, or failed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from results import Table

from accuracy.attribution_tools import Answer, Tool
from accuracy.planted_work import Phase, Planted

#: A tool watches this many steps in one go.
STEPS = 3
#: Up to this far off, in per cent, a module's number is right.
TOLERANCE = 10.0


@dataclass(frozen=True)
class Outcome:
    """What a tool said about one phase of a case.

    error: how far the number of the worst module is off, in per cent of its work.
    failure: the exception that the tool led to, instead.
    """

    error: float = 0.0
    failure: str = ""

    @property
    def is_right(self) -> bool:
        return not self.failure and abs(self.error) <= TOLERANCE

    def __str__(self) -> str:
        if self.failure:
            return self.failure
        text = f"{self.error:+.0f} %"
        return text if self.is_right else f"**{text}**"


Outcomes = Mapping[str, Mapping[Phase, Outcome]]


def compare_tools(
    cases: Mapping[str, Callable[[], Planted]], tools: Sequence[Tool], rounds: int
) -> dict[str, dict[str, dict[Phase, Outcome]]]:
    """Outcomes by case, tool and phase. The tools take turns."""
    return {
        case: {tool.name: outcomes(make, tool, rounds) for tool in tools}
        for case, make in cases.items()
    }


def outcomes(
    make: Callable[[], Planted], tool: Tool, rounds: int
) -> dict[Phase, Outcome]:
    """What a tool says of a case; it is asked again as long as it is wrong."""
    errors: list[Answer] = []
    planted = repeated(make())
    found: dict[Phase, Outcome] = {}
    for _ in range(rounds):
        planted.forget()
        gc.collect()
        gc.disable()  # cleaning up belongs to no module
        try:
            errors.append(errors_of(tool, planted))
        except Exception as error:  # whatever a tool does to a program
            failed = Outcome(failure=type(error).__name__)
            return dict.fromkeys(tool.phases, failed)
        finally:
            gc.enable()
        found = {phase: worst(errors, phase) for phase in tool.phases}
        if all(outcome.is_right for outcome in found.values()):
            break
    return found


def repeated(planted: Planted) -> Planted:
    """Some steps as one, after one that nobody looks at."""
    planted.step()

    def steps() -> None:
        for _ in range(STEPS):
            planted.step()

    return Planted(steps, planted.roots)


def errors_of(tool: Tool, planted: Planted) -> Answer:
    """How far a tool's numbers are off, in per cent of each module's work; where it had
    none, of what modules did on average."""
    answer = tool.ask(planted)
    truth = {
        (work, phase): work.spent[tool.unit][phase]
        for work in planted.works()
        for phase in tool.phases
    }
    average = mean(amount for amount in truth.values() if amount)
    return {
        key: 100 * (answer.get(key, 0) - amount) / (amount or average)
        for key, amount in truth.items()
    }


def worst(errors: Sequence[Answer], phase: Phase) -> Outcome:
    """What is said of the module that is most wrong in the best of its rounds: a busy
    machine takes the processor away anywhere, a wrong number is wrong in each round."""
    best = (
        min((errors_of_round[key] for errors_of_round in errors), key=abs)
        for key in errors[0]
        if key[1] == phase
    )
    return Outcome(max(best, key=abs))


def outcome_table(
    found: Mapping[str, Outcomes], phase: Phase, notes: Iterable[str] = ()
) -> Table:
    """A row for each case, a column for each tool that has numbers for the phase."""
    tools = [tool for tool, by in next(iter(found.values())).items() if phase in by]
    rows = [
        [case, *(str(by_tool[tool][phase]) for tool in tools)]
        for case, by_tool in found.items()
    ]
    right = [sum(by[tool][phase].is_right for by in found.values()) for tool in tools]
    rows.append(["right", *(f"{number} of {len(found)}" for number in right)])
    title = f"Planted work: {phase} of the module that is most wrong"
    return Table(title, ["", *tools], rows, list(notes))


def tool_figures(found: Mapping[str, Outcomes]) -> dict[str, dict[str, int]]:
    """By tool: how many cases there are, and how many of them it has right."""
    return {
        tool: {
            "cases": len(found),
            **{
                f"{phase}_right": sum(by[tool][phase].is_right for by in found.values())
                for phase in phases
            },
        }
        for tool, phases in next(iter(found.values())).items()
    }
