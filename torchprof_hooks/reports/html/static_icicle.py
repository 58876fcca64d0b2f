"""The icicle as it is without a script: the module tree, by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from torchprof_hooks.profiles.tree import Node
from torchprof_hooks.reports.hottest import Kind, by_kind, kind_of
from torchprof_hooks.reports.html.document import escaped
from torchprof_hooks.reports.table import percent
from torchprof_hooks.reports.time_tree import short_label
from torchprof_hooks.reports.units import best_time

#: Pixels from one level to the next; levels that are drawn.
_LEVEL: Final = 26
_DEEPEST: Final = 16
#: Narrower frames are left out: the share of the width.
_NARROWEST: Final = 0.002
#: Narrower frames have no name.
_NARROWEST_NAMED: Final = 0.012
#: Kinds of rows that are cold, however long they take: no module's, or the profiler's.
_COLD: Final = ("outside", "profiler", "unsampled")


class _Frame(NamedTuple):
    """A node in its place: a share of the width from the left, and a level."""

    node: Node
    left: float
    level: int
    around: str


#: The class of a frame that gives it its colour.
Colour = Callable[[Node], str]

#: Shares of the time at which layers of a kind become hotter, by the own time of all of
#: them together. (icicle.ts has the same.)
_LEVELS: Final = (0.01, 0.03, 0.07, 0.15, 0.3)
#: What the colours stand for.
LEVEL_TEXTS: Final = ("less", *(f"{100 * share:g} %" for share in _LEVELS))


def by_heat(top: Node) -> Colour:
    """Colours by the share of the time below a node. Layers of a kind are as hot as all
    of them together: otherwise, a model of many equal layers would have no hot one."""
    heat: dict[Kind, int] = {}
    for kind, alike in by_kind(node for _, node in top.walk()).items():
        share = sum(node.self_ns for node in alike) / (top.cumulative_ns or 1)
        is_cold = alike[0].kind in _COLD
        heat[kind] = 0 if is_cold else sum(share >= least for least in _LEVELS)
    return lambda node: f"heat{heat[kind_of(node)]}"


def static_icicle(top: Node, colour: Colour) -> str:
    """An SVG as wide as its place; what a frame stands for is its title, too. Frames
    are SVGs of their own, in per cent: that cuts their names where they end."""
    whole_ns = top.cumulative_ns
    frames = list(_frames(top, whole_ns))
    height = (1 + max(frame.level for frame in frames)) * _LEVEL
    drawn = "".join(_drawn(frame, colour, whole_ns) for frame in frames)
    return (
        f'<svg id="icicle" class="icicle" width="100%" height="{height}" role="img" '
        f'aria-label="The module tree by time">{drawn}</svg>'
    )


def _frames(top: Node, whole_ns: int) -> Iterator[_Frame]:
    """The frames that can be seen, the outer ones first."""
    coming = [_Frame(top, 0.0, 0, "")]
    while coming:
        frame = coming.pop()
        yield frame
        left = frame.left
        for child in frame.node.children if frame.level < _DEEPEST else ():
            width = child.cumulative_ns / (whole_ns or 1)
            if width >= _NARROWEST:
                coming.append(_Frame(child, left, frame.level + 1, frame.node.name))
            left += max(width, 0.0)


def _drawn(frame: _Frame, colour: Colour, whole_ns: int) -> str:
    node = frame.node
    width = node.cumulative_ns / (whole_ns or 1) if frame.level else 1.0
    share = percent(node.cumulative_ns, whole_ns)
    kind = colour(node) if frame.level else "whole"
    own_share = max(node.self_ns, 0) / (node.cumulative_ns or 1)
    label = short_label(node, frame.around) or "everything"
    text = escaped(f"{label}  {share}") if width >= _NARROWEST_NAMED else ""
    title = escaped(
        f"{node.name or 'everything'}: {best_time(node.cumulative_ns)}, {share}; "
        f"own {best_time(node.self_ns)}; {node.calls} calls"
    )
    return (
        f'<svg class="frame {kind}" x="{100 * frame.left:.3f}%" '
        f'y="{frame.level * _LEVEL}" width="{100 * width:.3f}%" height="{_LEVEL - 1}">'
        f'<title>{title}</title><rect class="body" width="100%" height="100%"/>'
        f'<rect class="own" y="{_LEVEL - 5}" width="{100 * own_share:.2f}%" '
        f'height="4"/><text x="5" y="16">{text}</text></svg>'
    )
