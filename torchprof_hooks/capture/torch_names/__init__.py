"""Every private torch name that this package uses, each behind one function.

torch may rename or drop them. The docstring of each function says what the package
does where the name is gone; no other code has to know.
"""

from __future__ import annotations

from collections.abc import Callable

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.measure.uninterrupted import in_own_thread


class Canary:
    """Says whether something of torch's that is not public is there and still works.

    It tries that once in a process, when it is first asked; in a thread of its own, so
    that the program does not notice. That thread has no modes or transforms, gradients
    are enabled, and it has its own counter of autograd nodes.

    what: what is not measured without it.
    names: the private names.
    check: tries the names; returns whether they do what is needed. Raising means no.
    """

    def __init__(
        self, what: str, names: tuple[str, ...], check: Callable[[], bool]
    ) -> None:
        self.what = what
        self.names = names
        self._check = check
        self._answer: bool | None = None

    def works(self) -> bool:
        """Whether it works, on this torch."""
        if self._answer is None:
            # A finalizer that ran in that thread might wait for a lock of this thread.
            with without_collections():
                if not in_own_thread(self._try):
                    self._try()
        return bool(self._answer)

    def has_failed(self) -> bool:
        """Whether somebody has asked, and it does not work."""
        return self._answer is False

    def forget(self) -> None:
        """Try it again when somebody asks."""
        self._answer = None

    def line(self) -> str:
        """What to tell the user when it has failed."""
        import torch  # here: programs that never import torch are looked at, too

        names = ", ".join(self.names)
        return f"{self.what}: torch {torch.__version__} does something else by {names}"

    def _try(self) -> None:
        try:
            self._answer = self._check()
        except Exception:  # whatever an untried version of torch raises
            self._answer = False
