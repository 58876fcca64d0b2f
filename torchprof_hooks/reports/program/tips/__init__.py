"""What the numbers of a program suggest to try."""

from torchprof_hooks.reports.program.tips.section import tips_section

__all__ = ["tips_section"]
