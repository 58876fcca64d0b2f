"""What goes on while functions are hooked is what would go on without."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.functions import Cube, Watching
from torchprof_hooks.function_hooks import TimerHook

X = torch.ones(4, 8)


@NATIVE_CORE
def test_hooks_that_do_not_end_in_order() -> None:
    first, second = TimerHook(), torchprof_hooks.profile(functions=True)
    with Watching() as program:
        first.__enter__()
        second.__enter__()
        torch.relu(X)
        first.__exit__(None, None, None)
        torch.tanh(X)
        second.__exit__(None, None, None)
        torch.exp(X)
    assert list(first.summary()) == ["relu"]
    assert program.seen == [torch.relu, torch.tanh, torch.exp]
    functions = second.profile.rows("function")
    names = {row.name for row in functions if row.kind == "function"}
    assert names == {"relu", "tanh"}


@NATIVE_CORE
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_transformers_of_torch_keep_their_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, mask = torch.randn(3, 5, 32), torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 3:] = True
    with torch.inference_mode():
        expected = encoder(x, src_key_padding_mask=mask)
        with torchprof_hooks.profile(functions=True) as prof:
            found = encoder(x, src_key_padding_mask=mask)
    assert torch.equal(found, expected)
    names = {row.name for row in prof.profile.rows("function")}
    assert "_transformer_encoder_layer_fwd" in names


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_torch_jit_can_script_attention() -> None:
    with torchprof_hooks.profile(functions=True):
        torch.jit.script(nn.MultiheadAttention(8, 2))
    torch.jit.script(nn.MultiheadAttention(8, 2))


def test_long_lists_of_numbers_are_not_searched() -> None:
    endless: list[Any] = [1.0]
    endless.append(endless)
    with torchprof_hooks.profile(functions=True):
        assert torch.tensor([0.0] * 100_000).shape == (100_000,)
        with pytest.raises(Exception, match=r".+") as error:
            torch.tensor(endless)
    with pytest.raises(error.type):
        torch.tensor(endless)


@pytest.mark.filterwarnings("ignore")
def test_frames_that_the_compiler_gave_up_on_are_not_compiled_piece_by_piece() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            with open(os.devnull):
                torch._dynamo.graph_break()
            y = torch.as_tensor(Cube.apply(torch.sin(x)))
        finally:
            pass
        return y.sum()

    def compiled() -> tuple[list[Any], float]:
        """The names of what is called in each graph, and the result."""
        graphs: list[Any] = []

        def backend(graph: Any, inputs: Any) -> Any:
            calls = [n for n in graph.graph.nodes if n.op.startswith("call")]
            graphs.append([getattr(n.target, "__name__", n.target) for n in calls])
            return graph.forward

        torch._dynamo.reset()
        result = torch.compile(function, backend=backend)(X)
        torch._dynamo.reset()
        return graphs, result.item()

    alone = compiled()
    with torchprof_hooks.profile(functions=True):
        assert compiled() == alone
