"""Whether a native core fits the torch that runs. It reads torch's memory as those
headers say that it was compiled with; others make it crash, or give wrong numbers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch
from torch.version import __version__ as TORCH_VERSION

from torchprof_hooks.kernel.torch_names.autograd import node_of, sequence_number
from torchprof_hooks.kernel.torch_names.tensors import storage_of
from torchprof_hooks.kernel.torch_names.tried import is_tried, minor
from torchprof_hooks.measure.uninterrupted import in_own_thread

#: Shape of the tensor that it is tried with.
_SHAPE = (3, 5)


def why_not(module: ModuleType) -> str:
    """What speaks against using this core here; "" if nothing does."""
    if minor(module.torch_version) != minor(TORCH_VERSION):
        return (
            f"the native core was built for torch {module.torch_version}, and this is "
            f"{TORCH_VERSION}"
        )
    found = _differs(module)
    return f"the native core does not fit this torch: {found}" if found else ""


def untried(module: ModuleType | None) -> tuple[str, ...]:
    """What to say of a torch that was not tried, one line each. With the native core,
    canaries are asked; their answers are kept beside it, so that they are asked once.
    """
    if is_tried(TORCH_VERSION):
        return ()
    line = f"torch {TORCH_VERSION} was not tried"
    if module is None:
        return (line,)
    path = Path(f"{module.__file__}.canaries")
    if path.exists():
        found = tuple(path.read_text(encoding="utf-8").splitlines())
    else:
        from torchprof_hooks.files.writing import replaced_file
        from torchprof_hooks.kernel.torch_names.canaries import findings

        found = findings()
        with suppress(OSError), replaced_file(path) as file:
            file.writelines(f"{each}\n" for each in found)
    return (line, *(f"{line}; {each}" for each in found))


def _differs(module: ModuleType) -> str:
    """What the core finds. In a thread of its own, which has none of the modes and
    numbers of the program's threads."""
    found = ["no answer"]

    def run() -> None:
        try:
            found.append(_differs_here(module))
        except BaseException as error:
            found.append(f"{type(error).__name__}: {error}")

    in_own_thread(run)
    return found[-1]


def _differs_here(module: ModuleType) -> str:
    """What the core finds, when torch runs one node and one operator in this thread."""
    leaf, gradient = (
        torch.zeros(_SHAPE, dtype=torch.float32, device="cpu", requires_grad=requires)
        for requires in (True, False)
    )
    node = node_of(leaf * 2)
    found: str = module.differs(
        lambda: node(gradient),
        sequence_number(node),
        _SHAPE,
        storage_of(leaf),
        leaf.data_ptr(),
        leaf.untyped_storage().nbytes(),
    )
    return found
