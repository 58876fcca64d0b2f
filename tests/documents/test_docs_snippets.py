"""The Python that the pages show runs as it stands, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.docs_samples import PAGES
from tests.running import python

#: What the reader has: a model, its data, and what trains it.
PROGRAM = """
import torch, torchprof_hooks
from torch.distributed import HashStore, init_process_group

init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(6, 4), batch_size=2)
batch = next(iter(loader))
batches = iter(loader)

def train_step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

def train_epoch():
    for batch in loader:
        train_step(batch)

def evaluate():
    with torch.no_grad():
        model(batch)

class trainer:
    def fit(model):
        train_epoch()

with torchprof_hooks.profile(memory=True) as prof:
    train_epoch()
profile = prof.profile

for size in (8, 16):
    with torchprof_hooks.profile(memory=True) as sized:
        model(torch.randn(size, 4)).sum().backward()
    sized.profile.save(f"{size}.json")
"""


#: Blocks with these need extras, and have tests and examples of their own.
ELSEWHERE = (
    "torchprof_hooks.integrations",
    "from accelerate import",
    "from ray.train import",
    "from swift.callbacks import",
    "from vllm import",
    "from prometheus_client import",  # tried below
    "from opentelemetry.metrics import",
    "def test_",
    "--what-was-changed",
)


def blocks(page: Path) -> list[str]:
    """The blocks of Python of a page."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [each for each in found if not any(name in each for name in ELSEWHERE)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name
)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    """In a process for each page, and an empty folder."""
    script = tmp_path / "snippets.py"
    script.write_text("\n".join([PROGRAM, *blocks(page)]), encoding="utf-8")
    done = python("-W", "ignore", str(script), folder=tmp_path)
    assert done.returncode == 0, done.stderr


#: What a program has around the snippet for a library of metrics, and what it prints:
#: the names and values that are served.
METRICS = {
    "prometheus_client": (
        "",
        "from urllib.request import urlopen\n"
        "print(urlopen(f'http://localhost:{server.server_port}').read().decode())",
    ),
    "opentelemetry.metrics": (
        "from opentelemetry.metrics import set_meter_provider\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader\n"
        "reader = InMemoryMetricReader()\n"
        "set_meter_provider(MeterProvider([reader]))",
        "print(reader.get_metrics_data().to_json())",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", METRICS)
def test_metrics_are_served(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library.replace(".metrics", ".sdk"))
    page = next(page for page in PAGES if page.name == "recipes.md")
    found = re.findall(
        r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    [snippet] = [each for each in found if f"from {library} import" in each]
    snippet = snippet.replace(
        "start_http_server(9464)", "server, _ = start_http_server(0)"
    )
    before, after = METRICS[library]
    script = tmp_path / "snippets.py"
    served = "serve(profile.scalars())"
    parts = [PROGRAM, before, snippet, served, after]
    script.write_text("\n".join(parts), encoding="utf-8")
    done = python("-W", "ignore", str(script), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torchprof" in done.stdout
    assert "time/step_ms" in done.stdout
