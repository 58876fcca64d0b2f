"""Who holds the memory of the CPU at the peak, and what it is: against brute force, and
against counts by hand."""

from __future__ import annotations

import copy
import random
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.attribution.simulated_memory import ledger_of
from tests.build import profile_of
from tests.cores import NATIVE_CORE
from torchprof_hooks import Profile, profile, region
from torchprof_hooks.hooks.results import is_out_of_memory, print_failure
from torchprof_hooks.kernel.torch_names.tensors import storages_of
from torchprof_hooks.profiles.memory import MemorySummary

pytestmark = NATIVE_CORE

#: Bytes of a number.
NUMBER = 4


def measured(run: Callable[[], Any], **options: Any) -> MemorySummary:
    with profile(memory="cpu", **options) as prof:
        run()
    return summary_of(prof.profile)


def summary_of(found: Profile) -> MemorySummary:
    memory = found.memory
    assert memory is not None
    assert sum(held.bytes for held in memory.at_peak) == memory.peak_bytes
    assert all(held.bytes > 0 for held in memory.at_peak)
    return memory


def by_owner(memory: MemorySummary, kind: str) -> dict[tuple[str, str], int]:
    return {(h.owner, h.phase): h.bytes for h in memory.at_peak if h.kind == kind}


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


# Against brute force


class Counted:
    """What a ledger has to tell, by keeping everything, and copying it at each peak."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int, int]] = {}  # by number: kind, bytes
        self.level = self.peak = 0
        self.at_peak: dict[int, tuple[int, int]] = {}

    def take(self, number: int, size: int) -> None:
        self.blocks[number] = 0, size
        self.level += size
        if self.level > self.peak:
            self.peak, self.at_peak = self.level, dict(self.blocks)

    def give(self, number: int) -> None:
        self.level -= self.blocks.pop(number)[1]

    def turn_out(self, number: int, kind: int) -> None:
        size = self.blocks[number][1]
        for known in (self.blocks, self.at_peak):
            if known.get(number, (0, 0))[1] == size:
                known[number] = kind, size

    def there_before(self, number: int, kind: int, size: int) -> None:
        self.blocks[number] = self.at_peak[number] = kind, size
        self.level += size
        self.peak += size


def cells(held: list[tuple[int, int, int]]) -> dict[int, int]:
    found: Counter[int] = Counter()
    for _, kind, size in held:
        found[kind] += size
    return {kind: size for kind, size in found.items() if size}


def expected(blocks: dict[int, tuple[int, int]]) -> dict[int, int]:
    return cells([(0, kind, size) for kind, size in blocks.values()])


@pytest.mark.parametrize("seed", range(6))
def test_random_blocks_are_told_as_by_brute_force(seed: int) -> None:
    """Some are freed by another thread; some were there before."""
    choose = random.Random(seed)
    before = {-n: torch.empty(choose.randint(1, 2000)) for n in range(1, 6)}
    with profile(memory="cpu") as prof:
        log, counted = ledger_of(prof), Counted()
        tensors: dict[int, torch.Tensor] = {}
        for number in range(1, 1200):
            what = choose.random()
            if what < 0.45 or not tensors:
                size = choose.randint(1, 2000)
                tensors[number] = torch.empty(size)
                counted.take(number, size * NUMBER)
            elif what < 0.85:
                gone = choose.choice([*tensors])
                if choose.random() < 0.1:
                    thread = threading.Thread(target=partial(tensors.pop, gone))
                    thread.start()
                    thread.join()
                else:
                    del tensors[gone]
                counted.give(gone)
            elif what < 0.99 or not before:
                one, kind = choose.choice([*tensors]), choose.randrange(7)
                [storage] = storages_of(tensors[one])
                log.turned_out([(storage, kind, 0, False, tensors[one])])
                counted.turn_out(one, kind)
            else:
                one, tensor = before.popitem()
                [storage] = storages_of(tensor)
                log.turned_out([(storage, 4, -1, True, tensor)])
                counted.there_before(one, 4, bytes_of(tensor))
                tensors[one] = tensor
                del tensor
            assert log.level_bytes == counted.level
        assert log.peak_bytes == counted.peak
        assert cells(log.holdings(False)) == expected(counted.blocks)
        assert cells(log.holdings(True)) == expected(counted.at_peak)


def test_none_of_many_blocks_is_lost() -> None:
    choose = random.Random(0)
    with profile(memory="cpu") as prof:
        ledger = ledger_of(prof)
        tensors: list[torch.Tensor] = []
        for living in (5000, 500, 20_000, 0):
            while len(tensors) < living:
                tensors.append(torch.empty(choose.randint(1, 64)))
            choose.shuffle(tensors)
            del tensors[living:]
            assert ledger.level_bytes == bytes_of(*tensors)


def test_what_is_kept_of_a_block_does_not_outlive_it() -> None:
    """A meter may go before the blocks that it has counted."""
    kept = []
    for _ in range(3):
        with profile(memory="cpu") as prof:
            kept.append(torch.empty(1000))
        assert summary_of(prof.profile).peak_bytes == 1000 * NUMBER
        del prof
    kept.clear()


# Counts by hand


class Net(nn.Module):
    """Two layers, between which 32 numbers of a row are kept by ReLU's backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(64, 32, bias=False)
        self.relu = nn.ReLU()
        self.b = nn.Linear(32, 16, bias=False)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.relu(self.a(x))) * self.scale
        return out


A, B = 64 * 32 * NUMBER, 32 * 16 * NUMBER
ROWS = 100

PARAMETERS = {("Net.a", "outside"): A, ("Net.b", "outside"): B}
GRADIENTS = {("Net.a", "backward"): A, ("Net.b", "backward"): B}


def test_a_model_from_before_is_there_at_the_peak() -> None:
    net, x = Net(), torch.ones(ROWS, 64)
    memory = measured(lambda: net(x))

    assert by_owner(memory, "parameter") == PARAMETERS
    assert by_owner(memory, "buffer") == {("Net", "outside"): 16 * NUMBER}
    # Nothing runs backward: what forward has in use is freed as it ends.
    kinds = memory.bytes_by_kind()
    assert kinds.keys() == {"parameter", "buffer", "temporary"}


def test_a_model_that_only_regions_call_is_there_as_well() -> None:
    model = nn.Linear(64, 64)

    def run() -> None:
        with region("train"), region("batch"):
            model(torch.ones(2, 64))

    memory = measured(run)
    found = sum(each.bytes for each in memory.at_peak if each.kind == "parameter")
    assert found == bytes_of(*model.parameters())


def test_what_forward_keeps_for_backward_are_activations() -> None:
    """ReLU's result is kept by it and by the next layer; that of the first layer by
    nobody; the last layer's for the product with the buffer, which keeps only that."""
    net, x = Net(), torch.ones(ROWS, 64)
    saved: dict[int, int] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        hooks: Any = torch.autograd.graph.saved_tensors_hooks
        with hooks(save, lambda tensor: tensor):
            out = net(x).sum()
        assert out.requires_grad
        torch.empty(10**6)  # the peak: only what is kept is there besides
        out.backward()

    memory = measured(step)
    model = {t.untyped_storage().data_ptr() for t in (*net.state_dict().values(), x)}
    kept = {pointer: size for pointer, size in saved.items() if pointer not in model}
    forward = {
        owner: size
        for (owner, phase), size in by_owner(memory, "activation").items()
        if phase == "forward"
    }
    assert forward == {"Net.relu": ROWS * 32 * NUMBER}
    assert sum(forward.values()) == sum(kept.values())
    assert by_owner(memory, "temporary")["(outside modules)", "outside"] == 4 * 10**6


@pytest.mark.parametrize(
    ("make", "per_number"),
    [
        (partial(torch.optim.SGD, lr=0.1), 0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1),
        (torch.optim.Adam, 2),
        (partial(torch.optim.AdamW, fused=True), 2),
    ],
    ids=["SGD", "momentum", "Adam", "AdamW, fused"],
)
@pytest.mark.parametrize("before", [0, 1], ids=["new", "made before"])
def test_gradients_and_states_of_optimizers(
    make: Callable[..., Any], per_number: int, before: int
) -> None:
    net, x = Net(), torch.ones(ROWS, 64)
    optimizer = make(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for _ in range(before):
        step()

    def run() -> None:
        for _ in range(3):
            step()
        torch.empty(10**6)  # the peak

    memory = measured(run)
    kinds = memory.bytes_by_kind()
    assert by_owner(memory, "parameter") == PARAMETERS
    assert by_owner(memory, "gradient") == GRADIENTS
    state = kinds.get("optimizer state", 0)
    counters = 2 * NUMBER if per_number == 2 else 0  # Adam counts steps
    assert state == per_number * (A + B) + counters
    if state:
        [(owner, _)] = by_owner(memory, "optimizer state")
        assert owner == f"(optimizer) {type(optimizer).__name__}"
    assert "activation" not in kinds or kinds["activation"] <= NUMBER  # the loss


class Tagger(nn.Module):
    """An LSTM and what reads its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(x)[0])
        return out


class Mixture(nn.Module):
    """Each row goes to one of the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        weights = self.gate(rows).softmax(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            chosen = torch.arange(number, len(rows), 3)
            done = expert(rows[chosen]) * weights[chosen, number : number + 1]
            out = out.index_add(0, chosen, done)
        return out


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 3)


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("make", [Tagger, Mixture, encoder])
def test_models_of_many_parts(make: Callable[[], nn.Module], functions: bool) -> None:
    """Two passes to a step; all there is after it, and a peak."""
    model, x = make(), torch.ones(8, 12, 16)
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                model(x).square().sum().backward()
            optimizer.step()
        torch.empty(10**7)

    memory = measured(run, functions=functions)
    parameters = [*model.parameters()]
    size = bytes_of(*parameters)
    kinds = memory.bytes_by_kind()
    assert kinds["parameter"] == kinds["gradient"] == size
    assert kinds["optimizer state"] == 2 * size + len(parameters) * NUMBER
    by_module: Counter[str] = Counter()
    for held in memory.at_peak:
        if held.kind == "parameter":
            by_module[held.owner] += held.bytes
    root = type(model).__name__
    assert by_module == {
        f"{root}.{name}".rstrip("."): bytes_of(*module.parameters(recurse=False))
        for name, module in model.named_modules()
        if [*module.parameters(recurse=False)]
    }


def test_gradients_that_are_kept_and_added_to_are_gradients() -> None:
    net, x = Net(), torch.ones(ROWS, 64)

    def run() -> None:
        for _ in range(4):
            net(x).sum().backward()
        torch.empty(10**6)

    assert by_owner(measured(run), "gradient") == GRADIENTS


def test_an_optimizer_that_steps_in_backward_leaves_no_gradients() -> None:
    net, x = Net(), torch.ones(ROWS, 64)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(parameter: nn.Parameter) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)

    def run() -> None:
        for _ in range(2):
            net(x).sum().backward()
        torch.empty(10**6)

    memory = measured(run)
    assert by_owner(memory, "parameter") == PARAMETERS
    assert "gradient" not in memory.bytes_by_kind()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, **options: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.options = {"use_reentrant": reentrant, **options}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, x, **self.options)
        return out


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_nothing_of_its_inside(reentrant: bool) -> None:
    net = Checkpointed(reentrant)
    x = torch.ones(ROWS, 64, requires_grad=True)

    def step() -> None:
        out = net(x).sum()
        torch.empty(10**6)  # the peak
        out.backward()

    activations = by_owner(measured(step), "activation")
    inside = {owner for owner, _ in activations if owner.startswith("Checkpointed.")}
    assert not inside - {"Checkpointed.inner.2"}  # its result, which `sum` may keep


def test_what_a_pass_inside_of_another_has_made_is_no_gradient_yet() -> None:
    """A reentrant checkpoint runs backward in backward."""
    net = Checkpointed(reentrant=True)
    x = torch.ones(4000, 64, requires_grad=True)
    held: list[torch.Tensor] = []
    x.register_hook(lambda grad: held.clear())  # the checkpoint's backward is over

    class Holds(torch.autograd.Function):
        """Has a block, from its backward on."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            held.append(torch.empty(10**6))
            return grad

    def step() -> None:
        Holds.apply(net(x)).sum().backward()

    kinds = measured(step).bytes_by_kind()
    assert kinds["temporary"] >= 4 * 10**6


class Unusual(Net):
    """Has methods of its own that torch's have the names of."""

    def named_modules(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    named_parameters = named_buffers = named_modules


def test_a_model_may_have_methods_of_its_own() -> None:
    net, x = Unusual(), torch.ones(ROWS, 64)
    parameters = by_owner(measured(lambda: net(x)), "parameter")
    assert parameters == {("Unusual.a", "outside"): A, ("Unusual.b", "outside"): B}


def test_what_is_computed_again_is_an_activation() -> None:
    net = Checkpointed(reentrant=False)
    x = torch.ones(4000, 64, requires_grad=True)

    memory = measured(lambda: net(x).sum().backward())
    again = {
        owner
        for (owner, phase) in by_owner(memory, "activation")
        if phase == "recompute"
    }
    assert "Checkpointed.inner.1" in again


def test_a_copy_of_the_model_is_something_else() -> None:
    net, x = Net(), torch.ones(ROWS, 64)
    kept: list[nn.Module] = []

    def run() -> None:
        kept.append(copy.deepcopy(net))
        net(x).sum().backward()
        torch.empty(10**6)

    memory = measured(run)
    # Buffers are copied into an `UntypedStorage`, which nothing tells us of.
    others = by_owner(memory, "other")["(outside modules)", "outside"]
    assert others == A + B


def test_autocast_keeps_its_copies_of_weights() -> None:
    net, x = Net(), torch.ones(ROWS, 64)

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = net(x).sum()
            torch.empty(10**6)
            out.backward()

    activations = by_owner(measured(run), "activation")
    assert activations["Net.a", "forward"] >= A / 2
    assert activations["Net.b", "forward"] >= B / 2


def test_views_and_storages_that_are_set_or_resized_count_once() -> None:
    def run() -> None:
        whole = torch.empty(1000)
        halves = whole[:500], whole[500:], whole.view(10, 100)
        other = torch.empty(0)
        other.set_(whole.untyped_storage())
        whole.add_(1)
        del whole, halves
        other.untyped_storage().resize_(5000 * NUMBER)
        torch.UntypedStorage(300)

    assert measured(run).peak_bytes == (1000 + 5000) * NUMBER


def test_what_is_taken_while_nothing_is_measured_is_nobodys() -> None:
    prof = profile(memory="cpu")
    with prof:
        first = torch.empty(1000)
    torch.empty(10**6)
    with prof:
        del first
        second = torch.empty(900)
    assert summary_of(prof.profile).peak_bytes == 1000 * NUMBER
    del second


def test_the_course_of_a_step_tells_where_functions_were_called() -> None:
    net, x = Net(), torch.ones(ROWS, 64)

    def run() -> None:
        for _ in range(3):
            net(x).sum().backward()
            net.zero_grad()

    memory = measured(run, functions=True)
    step = memory.step
    assert step is not None
    highest = max(step.points, key=lambda point: point.bytes)
    assert highest.bytes == step.peak_bytes == memory.peak_bytes
    *_, module, function = memory.peak_path
    assert highest.owner == f"{module}: {function}"
    assert step.points[0].since_ns == 0


# When memory runs out

#: Numbers for which no machine has the memory.
TOO_MANY = 2**48


class Greedy(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.a(x))
        if len(x) > ROWS:
            torch.empty(TOO_MANY)
        out: torch.Tensor = self.b(hidden)
        return out


def train_until_it_fails(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for rows in (ROWS // 4, ROWS // 2, 2 * ROWS):
        net(torch.ones(rows, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_who_had_the_memory_when_it_ran_out_is_told_and_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "profile.json"
    with (
        pytest.raises(RuntimeError, match="can't allocate memory") as raised,
        profile(memory="cpu", save=path) as prof,
    ):
        train_until_it_fails(Greedy())
    memory = summary_of(prof.profile)
    failure = memory.failure
    assert failure is not None
    assert failure.requested_bytes == TOO_MANY * NUMBER
    assert (failure.path, failure.phase) == (("Greedy",), "forward")
    found = {(held.owner, held.kind): held.bytes for held in failure.held}
    assert found["Greedy.relu", "activation"] == 2 * ROWS * 32 * NUMBER
    assert found["Greedy.a", "parameter"] == A
    assert found["(outside modules)", "other"] == 2 * ROWS * 64 * NUMBER
    assert len(memory.step_peaks) == 2
    assert memory.step_peaks[0] < memory.step_peaks[1] < failure.held_bytes

    assert summary_of(Profile.load(path)) == memory
    told = capfd.readouterr().err
    assert told.count("Memory ran out: 1.00PB for Greedy (forward)") == 1
    assert "Memory in use when it ran out, by owner\n" in told
    assert "Memory ran out: " in prof.profile.report()
    assert raised.value.__context__ is None


class Allocating(StringIO):
    """Takes memory for each line that it is given."""

    def write(self, text: str) -> int:
        self.lines = torch.ones(1000, requires_grad=True) * 2.0
        self.lines.sum().backward()
        return super().write(text)


def test_what_takes_memory_while_that_is_told_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", written := Allocating())
    failures = []
    with profile(memory="cpu") as outer:
        with (
            pytest.raises(RuntimeError, match="can't allocate memory"),
            profile(memory="cpu") as prof,
        ):
            train_until_it_fails(Greedy())
        for each in (prof, outer):
            failures.append(summary_of(each.profile).failure)
    assert "Memory ran out: 1.00PB for Greedy (forward)" in written.getvalue()
    assert failures[0] is not None
    assert failures[1] is not None
    assert failures[0].held_bytes == failures[1].held_bytes


def test_the_step_that_failed_is_not_held_for_that(
    capfd: pytest.CaptureFixture[str],
) -> None:
    net = Greedy()
    kept: list[weakref.ref[torch.Tensor]] = []
    net.relu.register_forward_hook(lambda *args: kept.append(weakref.ref(args[2])))
    with profile(memory="cpu") as prof:
        with suppress(RuntimeError):
            train_until_it_fails(net)
        assert kept[-1]() is None
        net(torch.ones(1, 64))
    assert "ran out" not in capfd.readouterr().err  # the program has gone on
    assert summary_of(prof.profile).failure is not None


def test_a_program_that_goes_on_has_the_answers_of_one_that_did_not_fail() -> None:
    net = Greedy()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    shown = []
    with profile(memory="cpu") as prof:
        with suppress(RuntimeError):
            train_until_it_fails(net)
        for _ in range(3):
            net(torch.ones(ROWS, 64)).sum().backward()
            optimizer.step()
            shown.append(prof.profile.report())
    # The first step after it ends the one in which memory ran out.
    assert ["Memory ran out: " in screen for screen in shown] == [True, False, False]
    failure = summary_of(prof.profile).failure
    assert failure is not None
    assert failure.steps_after == 2
    note = "memory ran out, 1.00PB for Greedy (forward); 2 whole steps came after that"
    assert note in prof.profile.report()
    for answer in ("Where the time goes", "Most memory", "phase "):
        assert answer in prof.profile.report()


def test_of_a_device_the_peak_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    memory = MemorySummary("cuda:0", 3 * 2**20, ("Net",), "forward")
    found = replace(profile_of(), memory=memory)
    print_failure(lambda: found)
    assert capfd.readouterr().err == (
        "torchprof_hooks: memory ran out; peak 3.00MB in Net (forward), of cuda:0\n"
    )
    print_failure(lambda: replace(found, memory=None))
    print_failure(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert capfd.readouterr().err == ""
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("something else"))
    assert not is_out_of_memory(None)
