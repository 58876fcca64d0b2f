"""Keeps our hooks on modules out of what torch.export and torch.jit.script make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.attach.module_hooks import hide_modules_from, numbers_of
from torchprof_hooks.capture.attach.patch import Layer, Patch
from torchprof_hooks.capture.torch_names.compiler import (
    export_contexts,
    script_module_maker,
)
from torchprof_hooks.capture.torch_names.hook_tables import (
    hide_hooks_of,
)
from torchprof_hooks.capture.torch_names.place import Function


class ExportShield(Attachment):
    """Takes hooks on all modules away while torch.export, which refuses hooks, traces a
    model; its users are `ModuleHooks`.

    Torch tells nobody of that, but it enters a context, in place of which we put ours.
    Modules of torch that are imported later import ours from there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._original: Function | None = None

    def put_on(self) -> None:
        """Put our context around torch's, wherever torch has it by now."""
        for place in export_contexts():
            found = place.read()
            if found is None or found == self._exporting:
                continue
            if self._original is None:
                self._original = found
            if found is self._original:
                place.write(self._exporting)

    def take_off(self) -> bool:
        """Put torch's back, unless something else is there."""
        for place in export_contexts():
            if self._original is not None and place.read() == self._exporting:
                place.write(self._original)
        return True

    @contextmanager
    def _exporting(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        assert self._original is not None
        with self._original(*args, **kwargs) as entered:
            show = hide_modules_from(self.users, self)
            try:
                yield entered
            finally:
                show(self.users)


def _make_scripting(original: Function, layer: Layer) -> Function:
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        if not layer.is_on:
            return original(nn_module, *args, **kwargs)
        numbers = numbers_of(script_patch.users)
        show = hide_hooks_of(nn_module, numbers)
        try:
            return original(nn_module, *args, **kwargs)
        finally:
            show(numbers)

    return create_script_module


#: The one shield there is.
export_shield: Final = ExportShield()

#: TorchScript would compile the hooks of a module along with it, and cannot compile
#: ours: they are hidden while it looks for hooks. Its users are `ModuleTap`s.
script_patch: Final = Patch(script_module_maker, _make_scripting)
