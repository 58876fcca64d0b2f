"""Mutants of the native core, for `tests.mutate`: each with one operator changed, one
condition negated, or one sum that nothing is added to.

There is no parser of C++ here: one statement stands in a line or two, and operators
stand between spaces, which the brackets of templates do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_PAIRS: Final = (
    *(("+", "-"), ("+=", "-="), ("<", "<="), (">", ">=")),
    *(("==", "!="), ("&&", "||")),
)
_SWAPPED: Final = dict([*_PAIRS, *((after, before) for before, after in _PAIRS)])
_OPERATOR: Final = re.compile(
    rf" ({'|'.join(map(re.escape, sorted(_SWAPPED, key=len, reverse=True)))}) "
)
#: What is added to something, up to the end of the statement.
_ADDED: Final = re.compile(r" [+-]= (.+);$")
#: A condition that is a name, or a call of one, and maybe negated.
_CONDITION: Final = re.compile(r"\b(?:if|while) \((!?)([\w:>.-]+(?:\([^()]*\))?)\)")
#: A call of ours whose result nobody looks at, if a statement begins there.
_CALL: Final = re.compile(r"^\s+(?!return\b|Py)([\w:>.-]+\([^=]*\));$")
_NO_CODE: Final = re.compile(r'^\s*#|//.*$|"[^"]*"')


def mutated_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """The number of a line, the line, and what stands in its place: all that there are
    of this source."""
    begins = True
    for number, line in enumerate(text.splitlines(), start=1):
        # Of the same length, so that places stay where they are.
        code = _NO_CODE.sub(lambda found: "\0" * len(found[0]), line).rstrip("\0 ")
        for start, end, replacement in _changes(code, begins):
            yield number, line, line[:start] + replacement + line[end:]
        begins = not code or code.endswith((";", "{", "}"))


def _changes(code: str, begins: bool) -> Iterator[tuple[int, int, str]]:
    """Where something is replaced, and by what.

    begins: whether the line begins a statement.
    """
    if code.lstrip().startswith("\0"):  # for the preprocessor
        return
    for found in _OPERATOR.finditer(code):
        yield *found.span(1), _SWAPPED[found[1]]
    for found in _CONDITION.finditer(code):
        yield *found.span(1), "" if found[1] else "!"
    if added := _ADDED.search(code):
        yield *added.span(1), "0"
    if begins and (call := _CALL.match(code)):
        yield *call.span(1), ""
