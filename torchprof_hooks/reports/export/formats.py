"""The formats by the names that commands know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.export.rows import render_csv, render_json
from torchprof_hooks.reports.export.stacks import render_collapsed, render_speedscope

#: One record a row, by any grouping.
ROW_FORMATS: Final[Mapping[str, Callable[[Profile, Grouping], str]]] = {
    "json": render_json,
    "csv": render_csv,
}
#: One line a stack.
STACK_FORMATS: Final[Mapping[str, Callable[[Profile], str]]] = {
    "speedscope": render_speedscope,
    "collapsed": render_collapsed,
}
