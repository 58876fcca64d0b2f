"""Text from a profile inside of HTML and of the data in it: names are never markup."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any, Final

#: Code points that HTML forbids, or that are no characters.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]"
)

#: What could end the element that the data is in, or begin a comment in it.
_MARKUP: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def escaped(text: str) -> str:
    """The text as it may stand between tags, or in quotes as an attribute. No line
    breaks between a number and its %."""
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return escape(printable.replace(" %", "\N{NO-BREAK SPACE}%"))


def script_json(content: Any) -> str:
    """JSON that may stand in a ``<script type="application/json">``. It is ASCII, so
    that U+2028, which ends a line in JavaScript, is written as an escape as well."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character, written in _MARKUP.items():
        text = text.replace(character, written)  # there are none outside of strings
    return text
