"""The one place that attaches to torch, and detaches."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torchprof_hooks.kernel.torch_names import Function, Place

P = ParamSpec("P")
R = TypeVar("R")


def held_weakly(method: Callable[P, R]) -> Callable[P, R | None]:
    """Wraps a method so that it is called only while its object lives, and does not
    keep the object alive. For callbacks on torch: what they refer to never dies."""
    find = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        living = find()
        return None if living is None else living(*args, **kwargs)

    return call


class Attachment(ABC):
    """Something that is on torch for as long as anybody uses it.

    Subclasses say how it is put on and taken off. Both may be called at any time, and
    again: an interrupt may have come in the middle of either.

    Only `attachments` adds and removes users. References to them are weak: a hook may
    refer to the very module that keeps it alive.
    """

    def __init__(self) -> None:
        self._users: tuple[weakref.ref[Any], ...] = ()

    @abstractmethod
    def put_on(self) -> None:
        """Put it on torch, as far as it is not there yet."""

    @abstractmethod
    def take_off(self) -> bool:
        """Take off what is on torch of it, if anything is. Returns whether that is
        done; if not, `Attachments.retry_cleanup` tries again."""

    @property
    def users(self) -> list[Any]:
        """The users that are alive, in the order in which they came."""
        living = (reference() for reference in self._users)
        return [user for user in living if user is not None]

    @property
    def is_used(self) -> bool:
        """Whether any user is alive."""
        return any(reference() is not None for reference in self._users)

    def users_here(self) -> list[Any]:
        """The users that work for this thread: trackers, and observers of these."""
        found = []  # a loop, as each pass asks this: a generator would be a call more
        for reference in self._users:
            user = reference()
            if user is not None and user.works_here():
                found.append(user)
        return found

    def add_user(self, user: object, when_gone: Callable[[object], object]) -> None:
        """Add `user`, unless it is there already; call `when_gone` when it dies."""
        if all(reference() is not user for reference in self._users):
            self._users = (*self._users, weakref.ref(user, when_gone))
        self.users_changed()

    def remove_user(self, user: object) -> None:
        """Remove `user`, and all users that are dead."""
        left = []
        for reference in self._users:
            other = reference()
            if other is not None and other is not user:
                left.append(reference)
        self._users = tuple(left)
        self.users_changed()

    def users_changed(self) -> None:  # noqa: B027
        """Called when users have come or gone, for subclasses that keep something about
        them."""


class Attachments:
    """Knows all that is on torch, from before it is put on until it has been taken off.

    An interrupt may end a method of this class between any two lines. Each attachment
    is listed before it is put on, so the list may name too many, never too few;
    `retry_cleanup` takes off those that nobody uses.

    in_finalizer: whether what is taken off now was given up in the middle of anything.
    """

    def __init__(self) -> None:
        self.in_finalizer = False
        # Reentrant: while we have it, Python may collect garbage, and a user with it.
        self._lock = threading.RLock()
        self._listed: dict[Attachment, None] = {}
        self._given_up: list[tuple[Attachment, object]] = []  # still to be detached

    def attach(self, attachment: Attachment, user: object) -> None:
        """Have `attachment` on torch for as long as `user` lives, or until `detach`."""
        with self._lock:
            self._listed[attachment] = None
            attachment.add_user(user, lambda _: self.give_up(attachment))
            attachment.put_on()
            self._settle_given_up()

    def detach(self, attachment: Attachment, user: object = None) -> None:
        """End the use of `attachment` by `user`, if there is any."""
        if attachment not in self._listed:
            return  # of all that a tracker may have, most have few
        with self._lock:
            self._remove(attachment, user)
            self._settle_given_up()

    def give_up(
        self,
        attachment: Attachment,
        user: object = None,
        is_ending: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """`detach`, for finalizers, which run in the middle of anything, in any thread:
        Python collects garbage wherever memory is asked for. This never waits for the
        lock: the thread that has it may wait for this thread, and will detach in its
        place. It may even be this thread, in the middle of attaching the same."""
        if is_ending():  # modules are empty by now, torch's and ours, with `sys`
            return
        self._given_up.append((attachment, user))
        is_mine: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        if not is_mine and self._lock.acquire(blocking=False):
            self.in_finalizer = True
            try:
                self._settle_given_up()
            finally:
                self.in_finalizer = False
                self._lock.release()

    def renew(self, attachment: Attachment) -> None:
        """Put `attachment` on again, if it has users: somebody else may have taken it
        off, or there may be more that it goes on."""
        with self._lock:
            if attachment in self._listed and attachment.is_used:
                attachment.put_on()
            self._settle_given_up()

    def retry_cleanup(self) -> None:
        """Take off what interrupts have left on torch, and nobody uses. To be called
        before anything else of ours is at work in this thread."""
        if self._listed:
            with self._lock:
                for attachment in list(self._listed):
                    self._settle(attachment)
                self._settle_given_up()

    def forget_lock(self) -> None:
        """Make a new lock, where the thread that has the old one will not release it:
        in a fork, that thread is not there."""
        self._lock = threading.RLock()

    def _settle_given_up(self) -> None:
        """Detach what was given up. If something is given up just as the lock is
        released, it waits for the next use of this object."""
        while self._given_up:
            self._remove(*self._given_up.pop())

    def _remove(self, attachment: Attachment, user: object) -> None:
        attachment.remove_user(user)
        self._settle(attachment)

    def _settle(self, attachment: Attachment) -> None:
        if not attachment.is_used and attachment.take_off():
            self._listed.pop(attachment, None)


#: All there is.
attachments = Attachments()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=attachments.forget_lock)


# Functions of torch's that are replaced for a while


class Layer:
    """Lets a function of ours know whether it is in use. Where others have wrapped it,
    their wrapper still calls it after we took it off, or inside of a newer function of
    ours: then it is to do no more than call the original."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


#: Makes a function that takes the place of another one, and can always call that.
Make = Callable[[Function, Layer], Function]


class Patch(Attachment):
    """A function of torch's, replaced by one that does the same and more.

    If others replace the function after us, theirs stays in place; it calls ours.

    find: where it is; a function is asked again each time, as torch imports some
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
    """Remove the caller's frame from the traceback of `error`, which the caller is
    about to raise again, so that users do not see it. Before Python 3.11, a bare
    ``raise`` adds the frame again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
