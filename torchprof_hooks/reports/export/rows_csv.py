"""The rows of a profile as CSV."""

from __future__ import annotations

import csv
from io import StringIO

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.export.records import (
    name_record,
    number_fields,
    phase_records,
)

_NAME_FIELDS = ("name", "class_name", "kind", "module", "compiled")


def render(profile: Profile, by: Grouping = "module") -> str:
    """One line for each row of `Profile.rows(by)` and phase that it has, below one of
    headers.

    Raises:
        ValueError: unknown `by`.

    Example::

        name,class_name,kind,module,compiled,phase,calls,self_ns,cumulative_ns,mean_ns,...
        Net,Net,module,Net,False,forward,10,1000000,51750000,5175000.0,...
        Net,Net,module,Net,False,backward,10,2000000,108250000,10825000.0,...

    The column `self_ns` adds up to the wall time. Columns of device times and bytes are
    there if they were measured.
    """
    text = StringIO()
    fields = [*_NAME_FIELDS, "phase", *number_fields(profile)]
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    for row in profile.rows(by):
        for phase, numbers in phase_records(profile, row).items():
            writer.writerow({**name_record(row), "phase": phase, **numbers})
    return text.getvalue().removesuffix("\n")
