"""What the callbacks of a `LinkHook` are told."""

from __future__ import annotations

from typing import Any

import torch


class LinkCall:
    """One call of a module, as Chainer's callback arguments name its parts.

    link, module: the module that is called (two names for it).
    path: its qualified name from the root, ``CharLM.blocks.0.attn``.
    forward_name: "forward".
    args, kwargs: what it was called with; in backward callbacks empty, since nothing is
        kept alive for them.
    out: what it returned; None before it did, and in backward callbacks.
    """

    __slots__ = ("args", "forward_name", "kwargs", "link", "out", "path")

    def __init__(
        self,
        link: torch.nn.Module,
        path: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.link = link
        self.path = path
        self.forward_name = "forward"
        self.args = args
        self.kwargs = {} if kwargs is None else kwargs
        self.out: Any = None

    @property
    def module(self) -> torch.nn.Module:
        """The same as `link`."""
        return self.link

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(path={self.path!r}, link={type(self.link).__name__}"
            f", forward_name={self.forward_name!r}, {len(self.args)} args"
            f", kwargs={sorted(self.kwargs)})"
        )
