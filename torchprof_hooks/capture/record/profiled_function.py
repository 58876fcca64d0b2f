"""Functions that are measured as if they were modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchprof_hooks.capture.record.site import Site


class ProfiledFunction(torch.nn.Module):
    """Calls a function. To all hooks it is a module that holds no other; whatever is
    called in it, backward passes and optimizers too, is a part of it.

    place: where it was made, "train.py:42".
    """

    def __init__(self, function: Callable[..., Any], place: str) -> None:
        super().__init__()
        self.function = function
        self.place = place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.function(*args, **kwargs)


def make_profiled_function(
    function: Callable[..., Any], name: str, place: str
) -> ProfiledFunction:
    """A profiled function whose class is called `name`: reports list it by that."""
    named: type[ProfiledFunction] = type(name, (ProfiledFunction,), {})
    return named(function, place)


def profiled_path(site: Site) -> tuple[str, ...]:
    """Path of the innermost profiled function around `site`, which all that it calls
    belongs to. () if no profiled function is around."""
    while site.caller is not site:
        if isinstance(site.living_module(), ProfiledFunction):
            return site.path
        site = site.caller
    return ()
