"""The pages of the documentation show what the program prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.docs_samples import PAGES, samples, with_samples
from tests.running import profiled

ROOT = Path(__file__).parents[2]
REPORT_PAGE = (ROOT / "docs" / "exit_report.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"[\d.,]+")
SAMPLE = r"<!-- sample: ([^\n]*) -->\n```text\n(.*?)\n```"
#: A line that is there if measuring took anything to speak of.
OF_MEASURING = "profiler overhead"


def shown(page: str) -> list[str]:
    """The outputs that a page shows."""
    return re.findall(r"```text\n(.*?)\n```", page, flags=re.DOTALL)


def fixed_parts(text: str) -> Iterator[str]:
    """The title of each section, headers of tables, and labels of lines."""
    first, *lines = text.splitlines()
    yield first.split(":")[0]
    for line in lines:
        yield from re.findall(r"<[^>]+>", line)
        if " were measured in " in line:
            yield " were measured in "  # modules, or functions alone
        elif first.endswith("profiling") and ":" in line:
            label = NUMBER.split(line.split(":")[0])[0]
            if label.strip() != "garbage collection":  # which comes by chance
                yield label


@pytest.mark.slow
@pytest.mark.parametrize(
    "core", ["native", pytest.param("python", marks=pytest.mark.thorough)]
)
def test_the_exit_report(core: str) -> None:
    """The sections of the page come with either core."""
    options = ("--memory", "--output-line-width", "120")
    program = str(ROOT / "examples" / "char_lm.py")
    arguments = ("--steps=5", "--length=5")
    run = profiled(*options, program, *arguments, TORCHPROF_HOOKS_CORE=core)
    assert run.code == 0, run.err
    samples = re.findall(SAMPLE, REPORT_PAGE, re.DOTALL)
    tables = "exit_report.json --format report"
    of_demo = [text for command, text in samples if tables in command]
    assert len(of_demo) == 5
    for text in of_demo:
        for part in fixed_parts(text):
            assert part in run.err, part
    assert "Memory Profile" in run.err
    assert OF_MEASURING in run.err
    assert OF_MEASURING in REPORT_PAGE


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_outputs_are_what_a_command_prints(path: Path) -> None:
    """After a change of a report: ``python -m tests.documents.docs_samples``."""
    page = path.read_text(encoding="utf-8")
    assert with_samples(page) == page
    assert set(shown(page)) == set(samples(page))
    kinds = re.findall(r"^ *```(.*)$", page, flags=re.MULTILINE)[::2]
    assert set(kinds) <= {"python", "sh", "console", "text", "{eval-rst}"}


@pytest.mark.parametrize("name", ["programs", "exit_report", "saved_profiles"])
def test_commands_that_are_shown_have_the_options_of_their_outputs(name: str) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    commands = " ".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL)).split()
    outputs = [command for command, _ in re.findall(SAMPLE, page, re.DOTALL)]
    assert outputs
    for output in outputs:
        if "compiled.json" in output:  # of another program
            continue
        values = re.findall(r"--(?:by|max-rows) (\S+)", output)
        assert set(values) <= set(commands), output
        if (
            "exit_report.json" in output
        ):  # its recording is in tests/documents/docs_samples.py
            assert "--memory" in commands
