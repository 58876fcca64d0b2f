"""Pages as they are written: what a browser would be given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import FUNCTIONS, STEP, hand_built, own
from tests.programs import python
from tests.reports.screen.test_screen import begun_with_evaluations
from tests.reports.screen.test_screen import program as with_start_up
from tests.reports.test_program_compilation import SUMMARY as COMPILED
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS
from torchprof_hooks.profiles.program.program_profile import ProgramProfile
from torchprof_hooks.profiles.program.strata import Strata
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.profiles.trace.device_idle import DeviceIdle, DeviceUse, IdleRow
from torchprof_hooks.reports.html.page import profile_page, program_page

MS = 10**6

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "a\u2028b\u2029c",
    "\x00\x1b[31m",
    "\ud800",
    "\"' onload='alert(1)' &lt;",
    "\u202eright to left",
)


class Page(HTMLParser):
    """A page taken apart as a browser does: elements with their attributes, texts by
    the element that they are in."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self._goes_on = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "wbr":
            self._goes_on = True
            return
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._goes_on:
            where, before = self.texts.pop()
            self.texts.append((where, before + data))
            self._goes_on = False
            return
        self.texts.append((self._open[-1] if self._open else "", data))

    def inside(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]

    @property
    def data(self) -> Any:
        [found] = [t for t in self.inside("script") if t.lstrip().startswith("{")]
        return json.loads(found)


def items(page: Page, key: str, by: str) -> Iterator[tuple[str, int, int, int]]:
    """Name, calls, own and cumulative time of each item in the data of a page."""
    data = page.data
    for name, _, _, _, record, calls, *_ in data[key][by]:
        phases = [[*numbers, 0, 0, 0, 0] for numbers in data["records"][record]]
        own_ns = sum(numbers[2] for numbers in phases)
        yield data["texts"][name], calls, own_ns, sum(each[3] for each in phases)


def figures(row: Row) -> tuple[str, int, int, int]:
    return row.name, row.calls, row.self_ns, row.cumulative_ns


def shown(page: str) -> str:
    """The texts of a page, without style and script."""
    texts = (text for tag, text in Page(page).texts if tag not in ("style", "script"))
    return " ".join(texts).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("profile", [STEP, FUNCTIONS], ids=["modules", "functions"])
def test_the_numbers_are_those_of_the_profile(profile: Profile) -> None:
    page = Page(profile_page(profile))
    kinds = GROUPINGS if profile.has_functions else ("module", "class")
    assert tuple(page.data["rows"]) == kinds
    for by in kinds:
        assert list(items(page, "rows", by)) == [figures(r) for r in profile.rows(by)]
    nodes = [figures(node) for _, node in profile.tree().walk()]
    assert list(items(page, "trees", "modules")) == nodes


def test_the_tree_is_that_of_the_profile() -> None:
    data = Page(profile_page(FUNCTIONS)).data
    names = [data["texts"][item[0]] for item in data["trees"]["functions"]]
    parents = [item[7] for item in data["trees"]["functions"]]
    around = {
        (name, names[at]) for name, at in zip(names, parents, strict=True) if at >= 0
    }
    expected = {
        (child.name, node.name)
        for _, node in FUNCTIONS.tree(functions=True).walk()
        for child in node.children
    }
    assert around == expected


def test_without_a_script_there_are_picture_and_table() -> None:
    page = Page(profile_page(STEP))
    frames = [a for tag, a in page.elements if tag == "svg" and "x" in a]
    assert len(frames) == 9  # four modules, four rows that are none, and everything
    titles = page.inside("title")
    assert any(
        re.match(r"Net\.a: 70\.00ns, .*; own 70\.00ns; 2 calls", t) for t in titles
    )
    cells = page.inside("th") + page.inside("td")
    assert cells[cells.index("Net.a") :][:1] == ["Net.a"]
    assert "70.00ns" in cells


def test_frames_lie_inside_of_those_that_call_them() -> None:
    frames: dict[str, tuple[float, ...]] = {}
    elements = iter(Page(profile_page(STEP)).elements)
    titles = iter(Page(profile_page(STEP)).inside("title")[1:])
    for tag, a in elements:
        if tag == "svg" and "x" in a:
            left, width = (float(str(a[name])[:-1]) for name in ("x", "width"))
            frames[next(titles).partition(":")[0]] = (left, left + width)
    assert frames["everything"] == (0.0, 100.0)
    for inner, outer in (("Net.b.a", "Net.b"), ("Net.b", "Net"), ("Net.a", "Net")):
        assert frames[outer][0] <= frames[inner][0] < frames[inner][1]
        assert frames[inner][1] <= frames[outer][1] + 0.01


def test_the_answers_come_first() -> None:
    text = shown(profile_page(STEP))
    # a: 30 + 40 of 168 ns; the Linear of the block: 15 + 20 + 14.
    assert (
        "Hottest module Net.a 41.7 %: Linear, forward 17.9 %, backward 23.8 % Forward "
        "or backward backward, 38.7 % What to do Look at Net.a first None of the usual "
        "troubles was found, so there is no tip. Where the time goes" in text
    )


def outside(function_ns: int) -> Profile:
    """The loop's own time is 50 ns, that of the model 50 and the function's."""
    function = {("Net > relu(8x4)", "forward"): own(function_ns, calls=2)}
    return hand_built(
        {
            ("Net", "forward"): own(50, calls=2),
            ("(outside modules)", "outside"): own(50, calls=0),
            **(function if function_ns else {}),  # type: ignore[dict-item]
        },
        {"Net": "Net", "(outside modules)": ModuleInfo(kind="outside")},
        steps=2,
    )


def test_code_outside_is_known_where_functions_were_measured() -> None:
    assert "is in no module" not in shown(profile_page(outside(0)))
    text = shown(profile_page(outside(20)))
    assert "What to do Look here first About 41.7% of the time" in text
    # No step is told apart from the others.
    assert "After the start-up" not in text


def test_layers_of_a_kind_are_hot_together() -> None:
    layers = {f"Net.blocks.{n}.fc": "Linear" for n in range(12)}
    cells = {(f"Net > {name}", "forward"): own(10, calls=2) for name in layers}
    profile = hand_built(
        {**cells, ("Net", "forward"): own(20, calls=2)},  # type: ignore[dict-item]
        {"Net": "Net", **layers},
    )
    page = profile_page(profile)
    assert "Net.blocks.*.fc 85.7 %: 12 Linear, forward 85.7 %" in shown(page)
    assert page.count('class="frame heat5"') == 12


def hostile_profile(name: str, class_name: str = "") -> Profile:
    """A profile that has this name wherever there can be one."""
    return hand_built(
        {
            (f"Net > {name}", "forward"): own(10, calls=1),
            ("Net", "forward"): own(5, calls=1),
        },
        {"Net": "Net", name: ModuleInfo(class_name or name, aliases=(name,), order=1)},
        not_measured=(name,),
        core="python",
        core_reason=name,
        devices=(name,),
        memory=MemorySummary(name, peak_path=("Net", name), peak_bytes=3),
    )


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_profile_names_is_never_markup(name: str) -> None:
    text = profile_page(hostile_profile(name))
    page, usual = Page(text), Page(profile_page(hostile_profile("Net.a", "A")))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in usual.elements]
    assert not any(a.startswith("on") for _, attrs in page.elements for a in attrs)
    assert name in page.data["texts"]
    assert text.isascii()
    assert text.count("<script") == text.count("</script") == 2
    assert "<!--" not in text


def test_nothing_is_fetched_and_one_script_may_run() -> None:
    page = Page(profile_page(STEP))
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "base")
        assert not {"src", "href", "action"} & attrs.keys()
    [policy] = [
        str(attrs["content"])
        for tag, attrs in page.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}';", policy)
    assert "url(" not in " ".join(page.inside("style"))


def test_steps() -> None:
    buckets = (Bucket(1, 8, 80 * MS), Bucket(2, 1, 11 * MS), Bucket(3, 1, 55 * MS))
    times = StepTimes(1, 65 * MS, buckets, 4, 8 * MS)
    text = shown(profile_page(replace(STEP, steps=11, step_times=times)))
    assert (
        "11 steps: first 65.00ms, then 14.60ms (median 10.00ms, 90 % within 11.00ms) "
        "\N{MIDDLE DOT} 4 evaluation calls of 2.00ms" in text
    )
    assert "1 of 10 later steps took longer than 1.5 times the median." in text
    assert ": slow" in text


def test_a_profile_without_steps_says_so() -> None:
    assert "No training step was seen" in shown(profile_page(STEP))


def test_an_empty_profile_says_so() -> None:
    text = shown(profile_page(Profile()))
    said = (
        "No module was called: there is nothing to show. profile() measures the thread"
    )
    assert said in text
    assert "What was measured, and how" in text


def test_memory_and_its_owner() -> None:
    memory = MemorySummary("cuda:0", False, 3 * 2**20, ("Net", "Net.b"), "backward")
    text = shown(profile_page(replace(STEP, memory=memory)))
    assert "memory of cuda:0 (gross): peak 3.00MB in Net.b (backward)" in text
    assert "peak 3.00" not in shown(profile_page(STEP))


def program(**facts: Any) -> ProgramProfile:
    strata = Strata(functions=Stratum(FUNCTIONS, 2, FUNCTIONS.wall_ns))
    return ProgramProfile("train.py", strata, FUNCTIONS.wall_ns, **facts)


def test_idle_time_of_devices() -> None:
    use = DeviceUse("cuda:0", 7, (IdleRow("Net.<0>", "forward", 3),))
    text = shown(program_page(program(device_idle=DeviceIdle(5, 10, (use,)))))
    assert "cuda:0: busy 70.0 % of step 5 (10.00ns), idle 3.00ns" in text
    assert "3.00ns 30.0 % Net.<0>, forward" in " ".join(text.split())
    assert "Idle time of devices" not in shown(program_page(program()))


def test_what_was_compiled() -> None:
    page = program_page(program(compilation=COMPILED))
    [text] = [text for tag, text in Page(page).texts if tag == "pre"]
    assert text.splitlines()[0] == "   Time in torch.compile: 10.000s in 6 compilations"
    assert text.splitlines()[1].split() == [
        "<%",
        "time>",
        "<time>",
        "<#call>",
        "<stage>",
    ]
    assert "<pre" not in program_page(program())


def test_a_program_has_its_name() -> None:
    assert "Profile of train.py" in shown(program_page(program()))


def test_where_a_device_is_always_busy_its_time_is_told() -> None:
    """As on the screen."""
    cells: Any = {
        ("Net", "forward"): replace(own(90 * MS, 1), device_self_ns=10 * MS),
        ("Net > Net.a", "forward"): replace(own(MS, 1), device_self_ns=30 * MS),
        ("Net > Net.a", "backward"): replace(own(2 * MS), device_self_ns=50 * MS),
        ("Net.a > mm(2x3)", "forward"): own(MS),
    }
    product = ModuleInfo(
        "mm", "function", inputs=("float32@cuda",), autocast="bfloat16"
    )
    names: Any = {"Net": "Net", "Net.a": "Linear", "mm(2x3)": product}
    busy = hand_built(cells, names, devices=("cuda",), device_asked=30, device_waits=10)
    page = profile_page(busy)
    text = " ".join(each for _, each in Page(page).texts)
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Hottest module on cuda Net.a 88.9 %: " in text
    assert "forward 33.3 %, backward 55.6 %" in text
    assert "Forward or backward on cuda backward, 55.6 %" in text
    assert "float32@cuda, autocast bfloat16" in page


def test_a_program_is_shown_as_on_its_screen() -> None:
    """The start-up apart, and all else about the loop."""
    page = Page(program_page(with_start_up()))
    text = " ".join(each for _, each in page.texts).replace("\N{NO-BREAK SPACE}", " ")
    assert "1.00sec start-up with the first step, then 100.00ms" in text
    assert "5 steps: first 1.00sec, then 25.00ms (median 20.00ms" in text
    assert "rank 1" not in text
    second = replace(with_start_up(), provenance=(Provenance(1, 4),))
    assert "rank 1 of 4 \N{MIDDLE DOT} 1.10sec wall" in shown(program_page(second))
    assert "measuring took about 0.3 % of all, the start-up included" in text
    assert "Hottest module LM.blocks.*.mlp 60.0 %: 4 Linear, " in text
    assert "Forward or backward backward, 40.0 %" in text
    assert "What to do AdamW(..., fused=True) does the same faster." in text
    assert (
        "phase start-up loop % per step "
        "backward 40.00ms 40.00ms 40.0 10.00ms "
        "forward 28.00ms 28.00ms 28.0 7.00ms "
        "outside of modules 924.00ms 24.00ms 24.0 6.00ms "
        "optimizers 8.00ms 8.00ms 8.0 2.00ms" in text
    )
    assert "the start-up is a column of the phases" in text
    rows = items(page, "rows", "module")
    assert sum(own_ns for _, _, own_ns, _ in rows) == 100 * MS


def test_a_start_up_that_ends_with_an_evaluation_call() -> None:
    text = shown(program_page(begun_with_evaluations(1)))
    assert "1.00sec start-up with the first evaluation call, then 100.00ms" in text


def test_a_program_of_one_step_is_shown_as_a_whole() -> None:
    whole = with_start_up()
    only = replace(whole, strata=Strata(warm_up=whole.strata.warm_up))
    text = shown(program_page(only))
    assert "1.00sec wall" in text
    assert "start-up" not in text


def test_a_page_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    STEP.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == profile_page(STEP)
    with pytest.raises(OSError, match="No such file"):
        STEP.to_html(tmp_path / "missing" / "page.html")
    with pytest.raises(OSError, match="directory"):
        STEP.to_html(tmp_path)
    with pytest.raises(TypeError, match="path must be the path of a file"):
        STEP.to_html(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="corrected must be True or False"):
        STEP.to_html(tmp_path / "page.html", corrected=1)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_measuring_took_is_a_row_of_its_own_unless_asked_otherwise() -> None:
    totals = replace(own(10, calls=1), overhead_ns=4)
    profile = hand_built({("Net", "forward"): totals}, {"Net": "Net"})
    rows = {
        name: own_ns
        for name, _, own_ns, _ in items(Page(profile_page(profile)), "rows", "module")
    }
    assert rows == {"Net": 6, "(profiler)": 4}
    raw = Page(profile_page(profile, corrected=False))
    assert [own_ns for _, _, own_ns, _ in items(raw, "rows", "module")] == [10]


def large(count: int) -> Profile:
    """A model of `count` modules, in blocks of a hundred."""
    modules = {"Net": "Net"}
    cells = {("Net", "forward"): own(1, calls=3)}
    for number in range(count):
        block = f"Net.blocks.{number // 100}"
        name = f"{block}.layers.{number}"
        modules |= {block: "Block", name: "Linear"}
        for phase in ("forward", "backward"):
            inner, outer = f"Net > {block} > {name}", f"Net > {block}"
            cells[inner, phase] = own(12_345_678 + number, calls=3)
            cells[outer, phase] = own(2_345_678 + number, calls=3)
    return hand_built(cells, modules)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_page_of_ten_thousand_modules_is_small() -> None:
    page = profile_page(large(10_000))
    assert len(page) < 3_000_000
    assert len(Page(page).data["rows"]["module"]) == 10_101


def test_importing_the_package_and_a_profile_imports_no_page() -> None:
    code = (
        "import sys, torchprof_hooks; torchprof_hooks.Profile; "
        "print([n for n in sys.modules if 'reports' in n or n == 'torch'])"
    )
    assert python("-c", code, fresh=True).stdout.strip() == "[]"


def test_the_remedy_of_a_tip_begins_behind_the_names_of_calls() -> None:
    cells: dict[Any, Any] = {
        ("Net", "forward"): own(10**9, 10),
        ("Net > linear(2x3, 4x3)", "forward"): own(10**9, 10),
    }
    call = ModuleInfo("linear", "function", inputs=("float64@cpu",) * 2)
    page = hand_built(cells, {"Net": "Net", "linear(2x3, 4x3)": call}, steps=10)
    assert '<p class="answer">float32 takes half the memory' in profile_page(page)


def test_what_was_not_looked_into_has_a_phase_of_its_own() -> None:
    known = with_start_up()
    outside = ModuleInfo(kind="outside")
    unseen = Profile(
        {(("(outside modules)",), "outside"): Totals(self_ns=9 * 10**8)},
        {"(outside modules)": outside},
        9 * 10**8,
    )
    strata = replace(known.strata, counted=Stratum(unseen))
    page = program_page(replace(known, strata=strata))
    assert "not looked into 90.0" in page
    assert "outside of modules 2.4" in page
