"""Functions of torch's that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.torch_names.place import Function, Place


class Layer:
    """Tells a function of ours whether it is in use. Others may have wrapped it, and
    their wrapper calls it after we took it off, or inside of a newer function of ours:
    then it only calls the original."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


#: Makes a function that takes the place of another one, and can always call that.
Make = Callable[[Function, Layer], Function]


class Patch(Attachment):
    """A function of torch's, replaced by one that does the same and more.

    If others replace the function after us, theirs stays in place; it calls ours.

    find: where it is; a function is asked again each time, for torch imports some
        modules late.
    make: makes what takes its place.
    """

    def __init__(self, find: Place | Callable[[], Place], make: Make) -> None:
        super().__init__()
        self._find = find if callable(find) else lambda: find
        self._make = make
        self._original: Function | None = None
        self._ours: Any = None
        self._layer = Layer()

    @property
    def is_on(self) -> bool:
        """Whether it is in place, or was, and somebody has replaced it since."""
        return self._layer.is_on

    def put_on(self) -> None:
        """Replace the function, if this torch has it."""
        place = self._find()
        found = place.read()
        if found is None:
            return
        if found is not self._ours and not self._layer.is_on:
            if found is not self._original:
                layer = Layer()
                ours = self._make(found, layer)
                self._original, self._ours, self._layer = found, ours, layer
            place.write(self._ours)
        self._layer.is_on = True

    def take_off(self) -> bool:
        """Put the original back, unless somebody has replaced ours."""
        self._layer.is_on = False
        place = self._find()
        if self._original is not None and place.read() is self._ours:
            place.write(self._original)
        return True


def leave_out_our_frame(error: BaseException) -> None:
    """Take the frame of the caller out of the traceback that users see of `error`,
    which the caller is about to raise again. Before Python 3.11, a bare ``raise`` adds
    the frame again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
