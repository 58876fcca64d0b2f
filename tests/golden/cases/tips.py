"""All tips there are, as a text has them; what takes most, and what is unusual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.build import Cells, ms, profile_of
from tests.documents.test_bottleneck import LEADING
from tests.documents.test_unusual_layers import LARGER_LAYER, SLOW_LAYER
from torchprof_hooks.documents.build.answers import answers
from torchprof_hooks.documents.build.rules import find_tips
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Answers, Document, Tips
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.compilation import (
    CompilationSummary,
    CompiledGraph,
    GraphBreak,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.optimizers import OptimizerFacts
from torchprof_hooks.profiles.program import Program, ProgramFacts


def _tips() -> str:
    cells: Cells = {
        ("Net", "forward"): ms(100, 10),
        ("Net > Net.a", "recompute"): ms(200, 10),
        ("Net > Net.a > relu(8)", "forward"): ms(150, 50_000, device_ms=100),
        ("Net > item(scalar)", "forward"): ms(50, 20),
        ("(data loading)", "data"): ms(150, 10),
        ("(waiting for gradients)", "waiting"): ms(150, 10),
        ("(optimizer) Adam", "optimizer"): ms(200, 80),
        ("(torch.compile)", "compiling"): ms(50, 2),
    }
    again = CompiledGraph("forward", "net.py:7", "0/1", 0, 0)
    graphs = (
        again._replace(recompile_reason="tensor 'x' size mismatch at index 0"),
        again._replace(failure="Unsupported: generator"),
    )
    breaks = (GraphBreak("forward", "net.py:9", "Call to `print`", 3),)
    facts = ProgramFacts(
        (OptimizerFacts("Adam", 16, True, False, "cuda", optimizers=8),),
        detects_anomalies=True,
    )
    modules: dict[str, ModuleInfo | str] = {
        "Net": "Net",
        "Net.a": "Block",
        "item(scalar)": ModuleInfo("item", "function", inputs=("float32@cuda",)),
    }
    compilation = CompilationSummary(2, 10**9, graphs, breaks)
    program = Program("train.py", compilation=compilation, facts=facts)
    run = profile_of(cells, modules, steps=10, program=program)
    return text_of(Document("program", "", [], [Tips(find_tips(view_of(run)))]))


def _bottlenecks() -> str:
    """The beginnings of screens, and what is said to do."""
    texts = []
    for profile in LEADING.values():
        first = answers(view_of(profile)).shown[:1]
        tips = Tips(find_tips(view_of(profile)))
        texts.append(text_of(Document("profile", "", [], [Answers(first), tips])))
    return "\n\n".join(texts)


CASES: Final[dict[str, Callable[[], str]]] = {
    "tips.txt": _tips,
    "bottlenecks.txt": _bottlenecks,
    "screen_slow_layer.txt": SLOW_LAYER.report,
    "screen_larger_layer.txt": LARGER_LAYER.report,
}
