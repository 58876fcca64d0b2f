"""Files with one JSON object; errors name the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files.codec import DamageError, RepeatedFields


def read_json(path: str | Path) -> Any:
    """The content of a file; it is not checked.

    Raises:
        ProfileFileError: it is not JSON.
        OSError: it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=RepeatedFields.dict_of)
    # A wrong encoding raises ValueError too; brackets without end, RecursionError.
    except (ValueError, RecursionError) as error:
        raise ProfileFileError(f"{path} is not a whole JSON file: {error}") from error


@contextmanager
def content_of(path: str | Path) -> Iterator[None]:
    """In this block, errors in the content of a file become a `ProfileFileError` with
    the path of the file."""
    try:
        yield
    except DamageError as damage:
        raise ProfileFileError(f"{path} is damaged: {damage}") from None
    except RecursionError:
        raise ProfileFileError(f"{path} is damaged: it is nested too deep") from None
    except ValueError as error:
        raise ProfileFileError(f"{path} {error}") from None
