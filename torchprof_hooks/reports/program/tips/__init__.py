"""Tips: changes that the numbers of a program suggest."""

from torchprof_hooks.reports.program.tips.evidence import Tip
from torchprof_hooks.reports.program.tips.section import find_tips, tips_lines

__all__ = ["Tip", "find_tips", "tips_lines"]
