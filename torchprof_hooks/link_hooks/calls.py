"""What the ready-made hooks that measure calls of modules have in common."""

from __future__ import annotations

from functools import cached_property

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.call_records import CallRecords
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import ModuleGrouping, check_grouping
from torchprof_hooks.profiles.options import check_whole


class MeasuredCalls(LinkHook):
    """A hook that adds up numbers of calls.

    by: sums are by "class" or by qualified name ("module").
    history_size: how many calls `call_history` keeps.
    """

    _name_header = "LinkName"

    def __init__(self, by: ModuleGrouping, history_size: int) -> None:
        check_grouping(by)
        self.by = by
        self._history_size = check_whole("history_size", history_size, least=0)

    @cached_property
    def _records(self) -> CallRecords:
        return CallRecords(self._history_size, self._is_call)

    def _is_call(self, site: Site) -> bool:
        """Whether calls at `site` are counted."""
        raise NotImplementedError

    def _name(self, tracker: Tracker, site: Site) -> str:
        """The name of the row that calls at `site` belong to."""
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name
