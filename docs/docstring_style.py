"""Docstrings of this package as Sphinx reads them.

They describe fields and parameters in a paragraph without a heading::

    calls: how many calls ended.
    min_ns, max_ns: shortest and longest call.

This extension makes a list of that, and finds public names where they are shown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final

import torchprof_hooks

if TYPE_CHECKING:
    from docutils.nodes import Element, TextElement
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

#: The beginning of a description. Headings ("Args:") have a capital.
_FIELD: Final = re.compile(r"((?:[a-z_]\w*, )*[a-z_]\w*): (?=\S)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    # Before napoleon, which reads the headings.
    app.connect("autodoc-process-docstring", _list_fields, priority=400)
    app.connect("autodoc-process-signature", _without_fields)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _public_name)
    return {"parallel_read_safe": True}


def _list_fields(*given: Any) -> None:
    item: object = given[3]
    lines: list[str] = given[5]
    make = _as_arguments if inspect.isroutine(item) else _as_list
    # "`Row`s" is a link with a plural.
    lines[:] = [re.sub(r"(`\w+`)(?=s\b)", r"\1\\ ", line) for line in make(lines)]


def _as_list(lines: Sequence[str]) -> Iterator[str]:
    """Fields of a class: a list of definitions."""
    for line, field in _marked(lines):
        if field:
            yield ""
            yield ", ".join(f"``{name}``" for name in field.split(", "))
            yield f"    {line.removeprefix(f'{field}: ')}"
        else:
            yield line


def _as_arguments(lines: Sequence[str]) -> Iterator[str]:
    """Parameters: a section that napoleon knows."""
    before = ""
    for line, field in _marked(lines):
        if field and not before:
            yield "Args:"
        in_field = bool(field) or (bool(before) and line.startswith("    "))
        yield f"    {line}" if in_field else line
        before = (field or before) if in_field else ""


def _marked(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(line, name of the field whose description begins there, or "")."""
    may_begin = True
    for line in lines:
        found = _FIELD.match(line) if may_begin else None
        yield line, found[1] if found else ""
        may_begin = not line or bool(found) or (may_begin and line.startswith("    "))


def _without_fields(*given: Any) -> tuple[str, None] | None:
    """Records are read, not made: their fields are listed below the name."""
    return ("", None) if _is_record(given[3]) else None


def _is_record(item: object) -> bool:
    return isinstance(item, type) and (is_dataclass(item) or hasattr(item, "_fields"))


def _skip(*given: Any) -> bool | None:
    """Fields of named tuples say of themselves "Alias for field number 0"."""
    text = getattr(given[3], "__doc__", None) or ""
    return True if text.startswith("Alias for field number") else None


def _public_name(
    app: Sphinx, env: BuildEnvironment, node: Element, content: TextElement
) -> Element | None:
    """``torchprof_hooks.profiles.rows.Row`` is shown as ``torchprof_hooks.Row``."""
    name = str(node.get("reftarget", "")).rpartition(".")[2]
    if name not in torchprof_hooks.__all__:
        return None
    page, target = str(node.get("refdoc")), f"torchprof_hooks.{name}"
    domain = env.get_domain("py")
    return domain.resolve_xref(env, page, app.builder, "obj", target, node, content)
