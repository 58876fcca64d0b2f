"""The pages of the documentation show what the program prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_samples import PAGES, commands, printed, with_samples
from tests.programs import profiled

ROOT = Path(__file__).parent.parent
REPORT_PAGE = (ROOT / "docs" / "exit_report.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[\d.,]+")


def shown(page: str) -> list[str]:
    """The outputs that a page shows."""
    return re.findall(r"```text\n(.*?)\n```", page, flags=re.DOTALL)


def fixed_parts(text: str) -> Iterator[str]:
    """The first line of each section, headers of tables, and labels of lines."""
    lines = text.splitlines()
    yield lines[0]
    for line in lines[2:]:
        if line.startswith("<"):
            yield line
        elif ":" in line and not NUMBER.match(line.strip()):
            yield NUMBER.split(line.split(":")[0])[0]


def test_the_exit_report() -> None:
    options = ("--profile-memory", "--output-line-width", "120")
    run = profiled(
        *options,
        str(ROOT / "examples" / "char_lm.py"),
        "--steps=5",
        TORCHPROF_HOOKS_CORE="python",  # the samples were measured with it
    )
    assert run.code == 0, run.err
    of_demo = [text for text in shown(REPORT_PAGE) if "torch.compile" not in text]
    assert len(of_demo) == 7
    for text in of_demo:
        for part in fixed_parts(text):
            is_tip = part.lstrip().startswith(("- ", "None"))  # depends on the times
            assert part in run.err or is_tip, part


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_samples_are_what_the_command_prints(path: Path) -> None:
    """After a change of a report: ``python -m tests.docs_samples``."""
    page = path.read_text(encoding="utf-8")
    assert with_samples(page) == page


#: What no stored profile can show: torch's own clocks measure these.
TIMED_BY_TORCH = {"Compilation", "Memory Profile"}


def test_all_outputs_are_samples() -> None:
    others = set[str]()
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        kinds = re.findall(r"^```(.*)$", page, flags=re.MULTILINE)[::2]
        assert set(kinds) <= {"python", "sh", "console", "text"}, path
        samples = {printed(command).rstrip("\n") for command in commands(page)}
        others |= {text.split("\n")[0] for text in shown(page) if text not in samples}
    assert others == TIMED_BY_TORCH
