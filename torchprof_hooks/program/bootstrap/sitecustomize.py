"""Python imports this by itself before it runs a program (see `program.launch`)."""

import importlib
import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    package = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    path, sys.path = sys.path, [package, *sys.path]
    try:
        from torchprof_hooks.program import launch, startup
    finally:
        sys.path = path
    path[:] = [entry for entry in path if os.path.abspath(entry or ".") != here]
    flags = launch.restore(os.environ)
    own = sys.modules.pop("sitecustomize")
    try:  # what the program would have had in the place of this file
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = own
    startup.begin_with_torch(flags, sys.meta_path)


_begin()
