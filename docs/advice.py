"""The page of advice, of the table of rules: ``python -m docs.advice`` writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchprof_hooks.documents.build.rules import RULES, Rule

PAGE: Final = Path(__file__).parent / "advice.md"

_HEAD: Final = """\
# Advice

When does a report give which advice? A line below is a rule. There is a tip if the
numbers reach all limits of the rule, and each piece of advice is given once: first that
on the bottleneck, which is the `next_step` of the first answer in
[JSON](json.md#answers), then in the order of this table. If memory has run out, there
is advice on memory alone. A cause is named only where it was measured.

| rule | when | what helps |
|---|---|---|
"""


def page() -> str:
    """The page."""
    return _HEAD + "".join(f"{_row(rule)}\n" for rule in RULES)


def _row(rule: Rule) -> str:
    cells = (rule.name, rule.when.format_map(rule.limits), "; ".join(_remedies(rule)))
    return f"| {' | '.join(cells)} |"


def _remedies(rule: Rule) -> Iterator[str]:
    """What helps, in each case; names of what is found in angle brackets."""
    texts = {"": rule.remedy, **rule.remedies}
    for text in dict.fromkeys(filter(None, texts.values())):
        cases = [case for case, each in texts.items() if each == text and case]
        before = f"*{', '.join(cases)}*: " * bool(cases)
        named = re.sub(r"\{(\w+)\}", r"&lt;\1&gt;", text)
        yield before + named


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
