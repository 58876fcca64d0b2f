"""What documents of large models take, in processor time after the imports.

Aim: each takes at most a second for a profile of 10 000 modules, and as much for each
module as for one of 1 000.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import results
import torch
from models import chain_step
from torch import Tensor, nn

from torchprof_hooks import Profile, Ranks, compare, profile
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.rank import rank_of
from torchprof_hooks.profiles.ranks.ranks import run_of

#: Layers of four modules each.
LAYERS = (250, 2500)
RANKS = 4
#: How often each document is made; the shortest time counts.
TIMES = 3


class Layer(nn.Module):
    """Four modules: itself, two, and a container."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        found: Tensor = self.inner(x)
        return found


def profiles_of(layers: int, folder: Path) -> Callable[[], Profile]:
    """Reads the profile of some steps: nothing is kept of what was computed of it."""
    step, path = chain_step(Layer, layers), folder / f"{layers}.json"
    with profile() as prof:
        for _ in range(4):
            step()
    prof.profile.save(path)
    return lambda: Profile.load(path)


def ranks_report(profiles: list[Profile]) -> str:
    """The report of as many ranks."""
    ranks = []
    for number, each in enumerate(profiles):
        process: Provenance = each.provenance[0]
        known = process._replace(rank=number, world_size=len(profiles))
        object.__setattr__(each, "provenance", (known,))
        ranks.append(rank_of(f"{number}.json", each))
    return Ranks.of(run_of(ranks)).report()


Make = Callable[[list[Profile]], object]

DOCUMENTS: dict[str, Make] = {
    "report()": lambda every: every[0].report(),
    "report(full=True)": lambda every: every[0].report(full=True),
    "page": lambda every: every[0].to_html(os.devnull),
    "JSON": lambda every: every[0].to_json(),
    "compare": lambda every: compare(every[0], every[1]).report(),
    f"{RANKS} ranks": ranks_report,
}


def seconds(load: Callable[[], Profile], make: Make) -> float:
    """How long it takes to make a document."""
    found = []
    for _ in range(TIMES):
        every = [load() for _ in range(RANKS)]
        began = process_time()
        make(every)
        found.append(process_time() - began)
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, dict[str, float]] = {name: {} for name in DOCUMENTS}
    with tempfile.TemporaryDirectory() as folder:
        loads = {4 * n: profiles_of(n, Path(folder)) for n in LAYERS}
        for name, make in DOCUMENTS.items():
            make([loads[4 * LAYERS[0]]() for _ in range(RANKS)])  # imports
            for modules, load in loads.items():
                figures[name][str(modules)] = seconds(load, make)
    headers = ["document", *(f"{n:,} modules".replace(",", " ") for n in loads)]
    rows = [
        [name, *(f"{found[str(n)]:.2f}" for n in loads)]
        for name, found in figures.items()
    ]
    title = "Documents of large models: seconds of processor time"
    results.save("documents", [results.Table(title, headers, rows)], figures)


if __name__ == "__main__":
    main()
