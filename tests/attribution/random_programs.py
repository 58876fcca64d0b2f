"""Programs that nobody thought of, measured on a clock that only planted work moves.

Run as a module, it prints what was booked for each of some seeds: the same with both
cores.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fake_clock import burn, fake_clock, leave_old_objects_alone
from tests.functions import FunctionKeeper
from tests.planted import Work
from torchprof_hooks import Profile, function_hooks, profile
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiles.totals import Totals


class _LostError(Exception):
    pass


class RandomModel(nn.Module):
    """Calls its children in random ways: once or twice, in checkpoints of both kinds,
    without gradients, with glue in between, and with hooks that run passes of their
    own; and loses its way now and then.

    functions: whether the glue is functions.
    """

    def __init__(self, rng: random.Random, depth: int, functions: bool) -> None:
        super().__init__()
        self.rng = random.Random(rng.random())
        self.functions = functions
        self.parts = nn.ModuleList(
            RandomModel(rng, depth - 1, functions)
            if depth and rng.random() < 0.4
            else Work(rng.choice([1, 2, 5]), rng.choice([3, 7]))
            for _ in range(rng.randint(1, 3))
        )

    def forward(self, x: torch.Tensor) -> Any:
        values = [x]
        for part in self.parts:
            inputs = self.rng.choice(values)
            values.append(self._call(part, inputs))
            burn(self.rng.choice([0, 1]))
            if self.rng.random() < 0.3:
                run_a_pass_in_a_hook(self.rng, part, values)
            if self.functions:
                values.append(call_functions(self.rng, part, values[-1]))
        if self.rng.random() < 0.04:
            raise _LostError
        return torch.stack(values).sum(0)

    def _call(self, part: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        way = self.rng.random()
        result: torch.Tensor
        if way < 0.1:
            with torch.no_grad():
                result = part(inputs)
        elif way < 0.4:
            seed = self.rng.random()

            def again(x: torch.Tensor) -> Any:  # the same way, both times
                for module in part.modules():
                    if isinstance(module, RandomModel):
                        module.rng.seed(seed)
                return part(x)

            result = checkpoint(again, inputs, use_reentrant=way < 0.25)
        elif way < 0.5:
            result = part(part(inputs))
        else:
            result = part(inputs) * 0.5
        return result


def run_a_pass_in_a_hook(
    rng: random.Random, module: nn.Module, values: list[torch.Tensor]
) -> None:
    """When a pass comes to one of `values`, or to all of them, a hook there runs
    another one, over a graph of its own of `module`."""
    hooked = [value for value in values if value.grad_fn is not None]
    if not hooked or not torch.is_grad_enabled():
        return
    start = hooked[-1].detach().requires_grad_()
    again = module(start).sum()

    def solve(gradient: Any) -> None:
        if again.requires_grad:
            torch.autograd.grad(again, start, retain_graph=True)

    way = rng.choice(("tensor", "node", "several"))
    if way == "tensor":
        hooked[-1].register_hook(solve)
    elif way == "node":
        node: Any = hooked[-1].grad_fn
        node.register_prehook(solve)
    else:
        torch.autograd.graph.register_multi_grad_hook(hooked, solve)


def call_functions(
    rng: random.Random, module: nn.Module, value: torch.Tensor
) -> torch.Tensor:
    """Something that `value` goes through: functions with inputs of several kinds; or
    one that takes its time, calls others, or does not return."""
    result: torch.Tensor
    if rng.random() < 0.2:
        result = torch.cat([value, value, value * 2])[: len(value)]
        result = torch.add(result, other=value, alpha=rng.choice([1, 2]))
        return torch.matmul(torch.stack([result, value]), torch.ones(3, 3)).sum(dim=0)
    try:
        torch.ones(rng.choice([1, 2])).apply_(_each_element(rng, module))
    except _LostError:
        if rng.random() < 0.2:
            raise
    except KeyboardInterrupt:
        burn(1)
    return value


def _each_element(rng: random.Random, module: nn.Module) -> Callable[[float], float]:
    """What a function calls for each element of a tensor."""
    way = rng.choice(("burns", "lost", "interrupted", "a module", "a function"))

    def work(element: float) -> float:
        burn(1)
        if way == "lost" and rng.random() < 0.3:
            raise _LostError
        if way == "interrupted" and rng.random() < 0.3:
            raise KeyboardInterrupt
        if way == "a module":
            module(torch.ones(3))
        if way == "a function":
            torch.cat([torch.ones(1), torch.zeros(1)])
        return element

    return work


class Program:
    """Some training steps of a random model, each with its own kind of backward."""

    def __init__(self, seed: int, functions: bool) -> None:
        self.rng = random.Random(seed)
        self.model = RandomModel(self.rng, 2, functions)
        self.weights = [nn.Parameter(torch.ones(3)) for _ in range(2)]
        self.optimizers = [torch.optim.SGD([w], 0.0) for w in self.weights]

    def run(self) -> None:
        for _ in range(4):
            try:
                self.step()
            except (_LostError, RuntimeError):  # some ways do not go together
                burn(1)

    def step(self) -> None:
        x = (self.weights[0] * self.weights[1]).requires_grad_()
        loss = self.model(x).sum() + x.sum()
        way = self.rng.random()
        if way < 0.2:
            loss.backward(retain_graph=True)
            loss.backward()
        elif way < 0.4:
            grads = torch.autograd.grad(loss, self.weights, create_graph=True)
            torch.stack([(g * g).sum() for g in grads]).sum().backward()
        elif way < 0.9:
            loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def booked(seed: int, functions: bool) -> Any:
    """All that was counted and timed, but for what a core does for itself."""
    program = Program(seed, functions)
    timer = TimerHook(backward=True, by="module")
    with timer, profile() as prof:
        program.run()
        if seed % 3 == 0:
            _in_thread(Program(seed + 1000, functions).run)
    return [cells(prof.profile), timer.summary()]


def told(seed: int) -> Any:
    """What hooks on functions are told, and measure."""
    program = Program(seed, functions=True)
    keeper, timer = FunctionKeeper(), function_hooks.TimerHook(by="call")
    with timer, keeper:
        program.run()
    seen = [(one.event, one.in_data, one.call.module_path) for one in keeper.seen]
    # Not all that is a function is an operator, and the other way around.
    assert timer.summary()
    return seen


def cells(found: Profile) -> list[Any]:
    return sorted(
        [list(path), phase, *numbers(totals)]
        for (path, phase), totals in found.cells.items()
        if phase != "profiler"
    )


def numbers(totals: Totals) -> tuple[int, ...]:
    extremes = totals.min_ns, totals.max_ns, totals.squares_ns2
    return totals.calls, totals.self_ns, totals.duration_ns, *extremes


def _in_thread(work: Callable[[], object]) -> None:
    def measured() -> None:
        with profile():
            work()

    thread = threading.Thread(target=measured)
    thread.start()
    thread.join()


def main(seeds: int) -> None:
    torch.set_num_threads(1)
    leave_old_objects_alone()
    with pytest.MonkeyPatch.context() as patch, fake_clock(patch):
        for seed in range(seeds):
            for functions in (False, True):
                print(json.dumps([seed, functions, booked(seed, functions)]))
            print(json.dumps([seed, "hooks", told(seed)]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
