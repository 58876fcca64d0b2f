"""The report that is printed when a program ends, in the sections that Theano had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torchprof_hooks.profiles.program import ProgramProfile
from torchprof_hooks.reports.program.groups import group_section
from torchprof_hooks.reports.program.totals import totals_section

Section = Callable[[], str]


def program_report(
    program: ProgramProfile, *, n_ops: int = 20, n_apply: int = 20, width: int = 512
) -> str:
    """The report as text. A section that fails says so in its place; the others are not
    lost with it.

    Example::

        Program profiling
        =================
          Message: train.py
          Time since the program began: 12.34s
          Time in 100 steps: 10.00s (100.00ms per step)
            forward 3.00s (30.0%), backward 6.00s (60.0%), ...

        Class
        ---
        <% time> <sum %> <apply time> <time per call> <#call> <#apply> <Class name>
          52.3%    52.3%       5.23s       1.02e-03s     5100       51   Linear
        ...
    """
    sections: Mapping[str, Section] = {
        "Totals": partial(totals_section, program),
        "Class": partial(group_section, program, "class", n_ops, width),
        "Ops": partial(group_section, program, "function", n_ops, width),
        "Apply": partial(group_section, program, "call", n_apply, width),
    }
    return "\n\n".join(_isolated(title, make) for title, make in sections.items())


def _isolated(title: str, make: Section) -> str:
    try:
        return make()
    except Exception as error:  # whatever it is, the rest of the report is not lost
        return f"{title}\n---\n(failed: {type(error).__name__}: {error})"
