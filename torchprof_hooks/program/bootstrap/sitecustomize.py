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
    began_ns = handover.BEGAN_NS  # when `handover` was imported
    told = handover.restore(os.environ)

    def begin() -> None:
        from torchprof_hooks.program import startup

        startup.begin_as_told(told, began_ns)

    own = sys.modules.pop("sitecustomize")
    try:  # the one that the program would have had without us
        __import__("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = own
    if not told:
        return
    if "torch" in sys.modules:  # imported by that one
        begin()
    else:
        wait = after_import.AfterImport("torch", begin, sys.meta_path)
        sys.meta_path.insert(0, wait)


_begin()
