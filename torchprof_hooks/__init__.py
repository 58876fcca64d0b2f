"""Where do the time and memory of a PyTorch program go, per module and per function,
forward and backward?

Public names are those of ``__init__.pyi``. They are imported at their first use, so
that no program waits for unused ones.
"""

import os

from torchprof_hooks.version import __version__ as __version__

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

_homes: "dict[str, str]" = {}


def _public() -> "dict[str, str]":
    """Public name -> the module that it is in, as ``__init__.pyi`` says."""
    if not _homes:
        import ast
        import pkgutil

        stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
        lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
        # At once, as other threads may look.
        _homes.update({n.name: str(line.module) for line in lines for n in line.names})
    return _homes


def __getattr__(name: str) -> "Any":
    if name == "__all__":
        return [*_public()]
    home = _public().get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == __name__:
        return _imported(f"{home}.{name}")
    value = getattr(_imported(home), name)
    globals()[name] = value
    return value


def _imported(name: str) -> "Any":
    """Import the module of that name. What modules define is no garbage, and to search
    it for garbage would be a tenth of the time of importing."""
    from importlib import import_module

    from torchprof_hooks.files.collector import without_collections

    with without_collections():
        return import_module(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_public()})


if "TORCHPROF_HOOKS_FLAGS" in os.environ:
    from time import perf_counter_ns

    _began_ns = perf_counter_ns()
    from torchprof_hooks.program.startup import begin_from_environment

    begin_from_environment(os.environ, _began_ns)
