"""Private names of torch are there and do what they are needed for; of a torch that was
not tried, reports say what canaries have found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import dataloader

from tests.build import profile_of
from tests.cores import NATIVE_CORE
from tests.functions import Watching
from tests.invisibility.canaries import ALL_CANARIES
from torchprof_hooks import Profile
from torchprof_hooks.kernel.core import CORE, UNTRIED
from torchprof_hooks.kernel.native import verify
from torchprof_hooks.kernel.torch_names import (
    autograd,
    canaries,
    distributed,
    functions,
)
from torchprof_hooks.kernel.torch_names.canaries import Canary, findings
from torchprof_hooks.kernel.torch_names.tried import is_tried


@pytest.mark.parametrize("canary", ALL_CANARIES, ids=lambda canary: canary.what)
def test_private_names_do_what_they_are_needed_for(canary: Canary) -> None:
    assert canary.works(), canary.names


def test_an_exception_is_a_no() -> None:
    def check() -> bool:
        raise RuntimeError("torch does something else")

    assert not Canary("something", ("_private",), check).works()


def test_a_canary_is_not_seen_by_modes_and_changes_no_state_of_the_program() -> None:
    with torch._C.DisableTorchFunction():
        state = torch.get_rng_state()
    number = autograd.next_sequence_number()
    with Watching() as mode, torch.inference_mode():
        for canary in ALL_CANARIES:
            assert canary.works(), canary.names

    assert mode.seen == []
    assert autograd.next_sequence_number() == number
    assert torch.equal(torch.get_rng_state(), state)


# What is hidden, one at a time

Hide = Callable[[pytest.MonkeyPatch], None]


def replaced(owner: Any, name: str, value: Any) -> Hide:
    return lambda patch: patch.setattr(owner, name, value)


def gone(owner: Any, name: str) -> Hide:
    return lambda patch: patch.delattr(owner, name)


def _entry_moved(patch: pytest.MonkeyPatch) -> None:
    entry = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    for function in (torch.autograd.backward, torch.autograd.grad):
        patch.setitem(function.__globals__, "_moved_entry", entry)
        code = function.__code__
        names = tuple(
            "_moved_entry" if name == "_engine_run_backward" else name
            for name in code.co_names
        )
        patch.setattr(function, "__code__", code.replace(co_names=names))


def _no_entry(patch: pytest.MonkeyPatch) -> None:
    _entry_moved(patch)
    patch.delattr(torch.autograd, "_engine_run_backward")


def _no_collectives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(distributed, "_c10d", None)
    patch.setattr(distributed, "_inside", distributed._inside.__wrapped__)


CASES: dict[str, tuple[Hide, str]] = {
    **{
        f"backward passes, {name}": (hide, "backward passes")
        for name, hide in {
            "no numbers": replaced(canaries, "next_sequence_number", lambda: 0),
            "no nodes": replaced(canaries, "current_autograd_node", lambda: None),
            "their entry is another": _entry_moved,
            "no entry": _no_entry,
        }.items()
    },
    "batches": (gone(dataloader, "_BaseDataLoaderIter"), "waiting for batches"),
    "recomputation": (
        replaced(canaries, "current_graph_task", lambda: -1),
        "recomputation in threads of devices",
    ),
    "collectives": (_no_collectives, "communication"),
    "storages": (
        replaced(canaries, "storage_of", lambda tensor: 0),
        "what memory is",
    ),
    "custom Functions": (
        replaced(functions.FunctionApplications, "start", lambda self: None),
        "custom autograd Functions",
    ),
    **{
        f"functions, {name}": (gone(torch._C, name), "functions with callbacks")
        for name in (
            "_len_torch_function_stack",
            "_get_function_stack_at",
            "_push_on_torch_function_stack",
            "_pop_torch_function_stack",
        )
    },
}


@pytest.mark.parametrize(("hide", "missing"), CASES.values(), ids=CASES)
def test_a_hidden_name_is_found_missing(
    hide: Hide, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings() == ()
    with monkeypatch.context() as patch:
        hide(patch)
        [found] = findings()
    assert found.startswith(f"{missing}: torch does something else by ")
    assert findings() == ()


# A torch that was not tried


def test_nothing_is_said_of_a_torch_that_was_tried() -> None:
    assert is_tried(torch.__version__)
    assert UNTRIED == verify.untried(CORE.module) == ()
    for version in ("2.7.1", "2.99.0", "2.13.0a0+git1", "2.13.0.dev20260101"):
        assert not is_tried(version)


class Loaded:
    """What stands for a native core."""

    def __init__(self, path: Path) -> None:
        self.__file__ = str(path)


@NATIVE_CORE
def test_canaries_are_asked_once_where_torch_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = Loaded(tmp_path / "core.so")
    monkeypatch.setattr(verify, "TORCH_VERSION", "2.99.0")
    with monkeypatch.context() as patch:
        patch.delattr(dataloader, "_BaseDataLoaderIter")
        found = verify.untried(core)
    line = "torch 2.99.0 was not tried"
    missing = "waiting for batches: torch does something else by _BaseDataLoaderIter"
    assert found == (line, f"{line}; {missing}")
    assert [path.name for path in tmp_path.iterdir()] == ["core.so.canaries"]
    monkeypatch.setattr(canaries, "CANARIES", None)  # nobody asks them again
    assert verify.untried(core) == found


def test_without_the_native_core_canaries_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "TORCH_VERSION", "2.99.0")
    assert verify.untried(None) == ("torch 2.99.0 was not tried",)


def test_reports_and_files_say_it(tmp_path: Path) -> None:
    lines = ("torch 9.0 was not tried",)
    made = profile_of(not_measured=lines)
    assert lines[0] in made.report()
    other = profile_of(not_measured=("backward passes: gone", *lines))
    made.save(tmp_path / "made.json")

    assert made.merge(other).not_measured == ("backward passes: gone", *lines)
    assert Profile.load(tmp_path / "made.json") == made
