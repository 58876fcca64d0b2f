"""Measures functions by torch's operators, of which the native core hears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.capture.attach.operators_heard import OperatorsHeard
from torchprof_hooks.capture.functions.function_calls import (
    FunctionCalls,
    is_inside_region,
)
from torchprof_hooks.capture.functions.function_sites import CUSTOM, FunctionSites
from torchprof_hooks.capture.functions.work import work_of
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.compiler import is_tracing
from torchprof_hooks.capture.torch_names.functions import has_dispatch_modes
from torchprof_hooks.capture.torch_names.inputs import told_value

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import BackwardPass
    from torchprof_hooks.capture.tracking.tracker import Tracker

_OF_TORCH: Final = "aten::"
#: Operators -> the names that users write.
_AS_WRITTEN: Final = {
    "cross_entropy_loss": "cross_entropy",
    "is_nonzero": "__bool__",
    "matrix_H": "H",
    "nll_loss_nd": "nll_loss",
    "numpy_T": "T",
}
#: Operators that compute nothing, and are called very often: all are in one row.
_SMALL: Final = frozenset({
    "alias", "detach", "detach_", "lift_fresh",
    "resolve_conj", "resolve_neg", "result_type", "set_",
})  # fmt: skip
SMALL_NAME: Final = "small operators"


class OperatorCalls(FunctionCalls):
    """Measures functions for a tracker, where the native core hears of them.

    A function is an outermost operator inside of the current call: ``linear``, but not
    the ``addmm`` that it calls. Custom autograd Functions, which have the names of
    their classes, call functions in turn. Steps of optimizers are not divided.
    """

    runs_python = False

    def serve(self, tracker: Tracker) -> None:
        """Work for `tracker`, and for no other."""
        # Operators that dispatch modes of the program were given, and have not called
        # yet; None: there are no modes.
        self._given_to_modes: set[str] | None = None
        self.sites = FunctionSites(tracker.tree, self.counts_flops)
        self.shown_by = OperatorsHeard(tracker)
        tracker.by_shapes = self.by_shapes

    # What the core asks

    def place(
        self, tracker: Tracker, caller: Site, operator: str, inputs: list[Any]
    ) -> Site | None:
        """The site of a call of an operator, which is new at `caller`; None if it is no
        function.

        inputs: as `told_value` takes them.
        """
        self.at_unknown()
        if is_inside_region(caller):
            caller.sees_operators = False
            return None
        if is_tracing():
            return None
        name, runs = _named(operator)
        site = self.sites.site_of_function(caller, name, runs=runs)
        if self.is_replaced(name):
            return self.sites.hidden(site)
        if not self.by_shapes or name == SMALL_NAME:
            return site
        self._given_to_modes = {operator} if has_dispatch_modes() else None
        is_known = self._given_to_modes is None and runs != CUSTOM
        known = operator if is_known else ""
        return self.sites.shaped(site, known, told_value(inputs))

    def count_inner(
        self, tracker: Tracker, site: Site, operator: str, inputs: list[Any]
    ) -> bool:
        """An operator is called in the first call at `site`, whose FLOPs are not known:
        add those of this operator. Returns whether they are known."""
        if not site.works:
            return False
        given = self._given_to_modes
        if given is not None:
            # A mode may know the outcome already (selective checkpoints do). If not, it
            # calls the operator again.
            if operator not in given:
                given.add(operator)
                return False
            given.remove(operator)
        work = work_of(operator, told_value(inputs))
        if work is not None:
            site.works[-1] = site.works[-1].plus(work)
        return work is not None

    def forget(self, tracker: Tracker) -> None:
        """Forget which operators are to be followed: the next calls ask again."""
        super().forget(tracker)
        for site in tracker.sites:
            site.forget_operators()

    def pass_begins(self, started: BackwardPass) -> None:
        """There is no mode to be put back."""


def _named(operator: str) -> tuple[str, str]:
    """The name of an operator, and what runs it (see `ModuleInfo.implementation`)."""
    if "::" not in operator:
        return operator, CUSTOM
    if not operator.startswith(_OF_TORCH):
        return operator, "op"
    name = operator.removeprefix(_OF_TORCH)
    return SMALL_NAME if name in _SMALL else _AS_WRITTEN.get(name, name), "C"
