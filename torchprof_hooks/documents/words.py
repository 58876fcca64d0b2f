"""Words and thresholds that all documents share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from torchprof_hooks.profiles.memory import MemoryKind

#: What readers call the kinds of memory.
KIND_TITLES: Final[Mapping[MemoryKind, str]] = {
    "activation": "activations",
    "gradient": "gradients",
    "optimizer state": "optimizer state",
    "parameter": "parameters",
    "buffer": "buffers",
    "temporary": "temporary",
    "other": "other",
}


def kind_name(kind: MemoryKind) -> str:
    """The name of the bytes of a kind for programs: ``optimizer_state_bytes``."""
    return f"{kind.replace(' ', '_')}_bytes"


#: From each of these shares of all time on, layers of a kind are hotter by one level.
HEATS: Final = (0.01, 0.03, 0.07, 0.15, 0.3)

#: If the profiler asked a device less often than this whether it idled, the share of
#: answers tells nothing.
LEAST_ASKED: Final = 20
#: If it idled at this share of begins and ends of calls, its times are mostly waiting.
MOSTLY: Final = 0.75

#: Why calls may be missing from a profile.
OTHER_THREADS: Final = (
    "profile() measures the thread that enters it: other threads need one of their own."
)
NEVER_ENTERED: Final = (
    "profile() measures what is called in its `with` block, or after its start()."
)


class Hints(NamedTuple):
    """What shows more, in the words of the interface that somebody reads.

    full: the report with all tables.
    more: all that shows more.
    functions, memory: what measures these.
    """

    full: str
    more: str
    functions: str
    memory: str


IN_PYTHON: Final = Hints(
    "report(full=True)",
    "report(full=True), to_html(path)",
    "profile(functions=True)",
    "profile(memory=True)",
)
OF_PROGRAMS: Final = Hints(
    "--full", "--full, --html FILE", "--time-thunks True", "--memory"
)
OF_FILES: Final = OF_PROGRAMS._replace(more="--full, --format html")


def share_text(share: float | None, uncertainty: float | None = None) -> str:
    """``21.1 % +/- 0.1``, the uncertainty in per cent, too; "" for None."""
    text = "" if share is None else percent(share)
    return text if uncertainty is None else f"{text} +/- {100 * uncertainty:.1f}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 row``, ``2 rows``; `nouns` is the plural where it is not `noun` with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def percent(part: float, whole: float = 1.0) -> str:
    """``12.3 %``; ``0.0 %`` if the whole is 0."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
