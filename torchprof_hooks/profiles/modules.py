"""What a profile knows of a name, apart from its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchprof_hooks.profiles.names import Kind


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """Description of one named row.

    class_name: the class of the module, or the name of the function ("" for rows that
        are neither).
    kind: "module", "function", or which of the rows that are neither.
    aliases: other qualified names of a shared module, sorted.
    compiled: whether it runs code made by torch.compile, whose inside is not visible.
    order: place among the names of a run, in the order of their first calls.
    """

    class_name: str = ""
    kind: Kind = "module"
    aliases: tuple[str, ...] = ()
    compiled: bool = False
    order: int = 0

    def with_alias(self, name: str) -> ModuleInfo:
        """The same with one more alias."""
        return replace(self, aliases=tuple(sorted({*self.aliases, name})))

    def merge(self, other: ModuleInfo) -> ModuleInfo:
        """What two profiles know of the same name, whatever their order. Two classes
        under one name (``Sequential.0``, say) show both, joined by "|"."""
        classes = {*self.class_name.split("|"), *other.class_name.split("|")}
        return ModuleInfo(
            "|".join(sorted(classes)),
            min(self.kind, other.kind),
            tuple(sorted({*self.aliases, *other.aliases})),
            self.compiled or other.compiled,
            min(self.order, other.order),
        )
