"""The errors of this package.

The package raises built-in exceptions where they suffice: `TypeError` and `ValueError`
for parameters, `KeyError` for names of hooks, `RuntimeError` for calls out of order.
"""

from __future__ import annotations


class ProfilerError(Exception):
    """Base of the errors that only this package raises.

    Each is also one of Python's own errors, so that ``except ValueError`` catches it.
    """


class FlagError(ProfilerError, ValueError):
    """A setting of a whole program's profile that does not exist, or whose value is not
    valid (see `torchprof_hooks.enable`)."""


class MemoryUnavailableError(ProfilerError, RuntimeError):
    """The memory of a device cannot be measured in this process. The message says why,
    and what to do."""


class ProfileFileError(ProfilerError, ValueError):
    """A file is not a profile, or is damaged, or was written by a newer release. The
    message names the place in the file."""
