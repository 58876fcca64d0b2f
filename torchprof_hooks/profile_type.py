"""`Profile`: the record of a run, with its reports, files and exports.

The code for these is imported when they are used, as few programs need all of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.options import check_path
from torchprof_hooks.reportable import ProfileReports

if TYPE_CHECKING:
    from torchprof_hooks.documents.document import Document
    from torchprof_hooks.documents.utilisation import Utilisation

P = TypeVar("P", bound="Profile")


class Profile(ProfileReports, ProfileData):  # noqa: D101 - it has that of `ProfileData`
    __doc__ = ProfileData.__doc__

    @property
    def utilisation(self) -> Utilisation | None:
        """The share of the device's peak that the program reached, in the measured time
        without the profiler overhead: MFU without, and HFU with recompute. None if no
        operations were counted, or no peak is known."""
        from torchprof_hooks.documents import utilisation

        return utilisation.of_profile(self)

    @property
    def items_per_second(self) -> float:
        """Items per step, divided by the mean duration of a step (without the first of
        a run, if there are others); 0.0 if either is not known. For merged runs, it is
        the mean rate of one, not the sum."""
        from torchprof_hooks.documents import utilisation

        return utilisation.items_per_second(self)

    def save(self, path: str | Path) -> None:
        """Write the profile to a JSON file.

        An existing file keeps its mode, and is replaced only when all of the new one is
        written. Of a link, the file that it points to is replaced; devices and pipes
        are written to.

        Raises:
            OSError: the file cannot be written.
        """
        from torchprof_hooks.files import profile_file

        profile_file.save(self, check_path("path", path))

    @classmethod
    def load(cls: type[P], path: str | Path) -> P:
        """Read a profile that `save` wrote.

        Raises:
            ProfileFileError: the file is not a profile, is damaged, or was written by
                a release with another version of files.
            OSError: the file cannot be read.
        """
        from torchprof_hooks.files import profile_file

        return cls.of(profile_file.load(check_path("path", path)))

    def _document(self, level: Literal["page", "json", "markdown"]) -> Document:
        from torchprof_hooks.documents.build.blocks import Asked, document
        from torchprof_hooks.documents.build.view import view_of

        return document(Asked(view_of(self), level))
