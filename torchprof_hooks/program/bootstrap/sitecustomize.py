"""Python imports this by itself before it runs a program (see `program.launch`)."""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    path, sys.path = sys.path, [package, *sys.path]
    try:
        from torchprof_hooks.program import after_import, handover
    finally:
        sys.path = path
    path[:] = [entry for entry in path if os.path.abspath(entry or ".") != here]
    text = handover.restore(os.environ)

    def begin() -> None:
        from torchprof_hooks.program import startup

        startup.begin_with(text)

    own = sys.modules.pop("sitecustomize")
    try:  # the `sitecustomize` that the program would have without us
        __import__("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = own
    if text:  # that `sitecustomize` may have imported torch: then this begins now
        after_import.call_after_import("torch", begin)


_begin()
