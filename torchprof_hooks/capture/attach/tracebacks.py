"""The tracebacks that users see."""

from __future__ import annotations


def leave_out_our_frame(error: BaseException) -> None:
    """Let the caller, which is about to raise `error` again, not be seen in the user's
    traceback: a bare ``raise`` takes what is in the exception. Before Python 3.11 it
    does not, and the frame is seen."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
