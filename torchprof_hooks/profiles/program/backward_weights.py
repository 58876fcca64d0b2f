"""Weights of the backward of outermost modules, for estimates of all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchprof_hooks.profiles.cells import outermost
from torchprof_hooks.profiles.profile import Profile


def backward_weights(seen: Profile, parts: Sequence[Profile]) -> dict[str, float]:
    """For each outermost module, how many training calls there are in all steps
    (`parts`) per call in those that were looked into (`seen`), relative to the mean.

    Only where modules are looked into does it show whose a backward is, and of longer
    steps, more are looked into. Empty where only one module has a backward.
    """
    untrained: dict[str, int] = {}
    trained = set()
    for (path, phase), totals in seen.cells.items():
        name, *inner = path
        if phase == "forward" and not inner and seen.modules[name].kind == "module":
            backward = outermost(seen.cells, name, "backward")
            with_backward = min(backward.calls, totals.calls)
            untrained[name] = totals.calls - with_backward
            if with_backward:
                trained.add(name)
    if len(trained) < 2:
        return {}
    # Of calls without a backward, some are in training steps, the rest evaluations.
    all_untrained = max(sum(untrained.values()), seen.step_times.evaluations, 1)
    shares = {name: untrained[name] / all_untrained for name in sorted(trained)}
    known = _training_calls([seen], shares)
    found = _training_calls(parts, shares)
    whole = {name: max(found[name], known[name]) for name in known}
    mean = sum(whole.values()) / sum(known.values())
    return {name: whole[name] / known[name] / mean for name in known}


def _training_calls(
    profiles: Sequence[Profile], shares: Mapping[str, float]
) -> dict[str, float]:
    """Calls of modules, without the `shares` of evaluations that are theirs."""
    evaluations = sum(profile.step_times.evaluations for profile in profiles)
    return {
        name: sum(outermost(each.cells, name).calls for each in profiles)
        - share * evaluations
        for name, share in shares.items()
    }
