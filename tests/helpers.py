"""What several test files need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import nn

from torchprof_hooks import LinkCall, LinkHook, Profile
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals

Result = TypeVar("Result")


def own(self_ns: int, calls: int = 1, device_ns: int = 0) -> Totals:
    """The numbers of a hand-built cell."""
    return Totals(calls=calls, self_ns=self_ns, device_self_ns=device_ns)


def hand_built(
    cells: Mapping[tuple[str, Phase], Totals],
    modules: Mapping[str, ModuleInfo | str],
    **facts: Any,
) -> Profile:
    """A profile of cells whose paths are written ``"Net > Net.fc"``; a module may be
    given by its class name. Wall time, if not given, is the sum of the cells."""
    return Profile(
        {(tuple(path.split(" > ")), phase): t for (path, phase), t in cells.items()},
        {
            name: ModuleInfo(info) if isinstance(info, str) else info
            for name, info in modules.items()
        },
        **{"wall_ns": sum(t.self_ns for t in cells.values()), **facts},
    )


def in_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns, or raises, when another thread does it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


class MyModel(nn.Module):
    """Two Linears, one after the other; `between` is called between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = nn.Linear(3, 3)
        self.l2 = nn.Linear(3, 3)
        self.between: Callable[[], object] = int

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = self.l1(x)
        self.between()
        result: torch.Tensor = self.l2(hidden * scale)
        return result


def inputs() -> torch.Tensor:
    return torch.ones(2, 3)


class Recorder(LinkHook):
    """Writes down every callback: ``"pre Net.fc"``; the calls themselves in `calls`."""

    name = "Recorder"

    def __init__(self, name: str = "Recorder") -> None:
        self.name = name
        self.events: list[str] = []
        self.calls: list[LinkCall] = []

    def _note(self, callback: str, args: LinkCall) -> None:
        self.events.append(f"{callback} {args.path}")
        self.calls.append(args)

    def added(self, link: nn.Module | None) -> None:
        self.events.append(f"added {type(link).__name__}")

    def deleted(self, link: nn.Module | None) -> None:
        self.events.append(f"deleted {type(link).__name__}")

    def forward_preprocess(self, args: LinkCall) -> None:
        self._note("pre", args)

    def forward_postprocess(self, args: LinkCall) -> None:
        self._note("post", args)

    def backward_preprocess(self, args: LinkCall) -> None:
        self._note("backward pre", args)

    def backward_postprocess(self, args: LinkCall) -> None:
        self._note("backward post", args)

    def taken(self) -> list[str]:
        """The events so far, which are forgotten."""
        events, self.events = self.events, []
        self.calls = []
        return events
