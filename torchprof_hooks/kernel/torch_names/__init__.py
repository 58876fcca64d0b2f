"""Every private torch name that this package uses, each behind one function.

torch may rename or drop them. The docstring of each function says what the package
does where the name is gone; no other code has to know. Canaries try the names: tests
ask them, with each version of torch (see `canaries`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType
from typing import Any, NamedTuple

Function = Callable[..., Any]


class Place(NamedTuple):
    """An attribute of a module or class of torch's that is a function, or may be one;
    or the cell of a closure that holds one.

    owner: None where this torch has no such thing.
    """

    owner: Any
    name: str

    def read(self) -> Any:
        """The current value; None if there is none."""
        if self.owner is None:
            return None
        if isinstance(self.owner, CellType):
            return self.owner.cell_contents
        return vars(self.owner).get(self.name)

    def write(self, function: Any) -> None:
        """Put `function` in this place."""
        setattr(self.owner, self.name, function)
