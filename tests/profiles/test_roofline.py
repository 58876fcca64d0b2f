"""What bounds functions: by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import NOT_MODULES, hand_built, own
from torchprof_hooks import Bandwidth, Peak, Profile, Roofline, Row, Totals, Traffic
from torchprof_hooks.measure.peaks import (
    data_sheet_bandwidth,
    largest_cache_bytes,
    measured_bandwidth,
    summed_bytes,
)
from torchprof_hooks.profiles.names import Library
from torchprof_hooks.profiles.operations.utilisation import higher
from torchprof_hooks.reports.export.rows import render_csv, render_json

MS = 10**6
#: 10^12 operations and 10^11 bytes per second: as much of both at 10 per byte.
PEAK = Peak(10**12, "given as peak_flops", Bandwidth(10**11, "by its data sheet"))


def moved(self_ms: int, flops: float, *traffic: float, calls: int = 1) -> Totals:
    found = Traffic(*map(round, traffic))
    return replace(own(self_ms * MS, calls), flops=round(flops), traffic=found)


#: linear: 3 * 10^9 operations, 10^8 bytes, 6 ms: 3 of these are the least for it.
#: small: 10^6 operations, 10^6 bytes, 1 ms: 0.01 ms are. add: 2 * 10^8 bytes, 4 ms: 2.
#: relu is not known in backward; some calls of topk are not known.
BOUND = hand_built(
    {
        ("Net", "forward"): own(10 * MS),
        ("Net > linear(8x4)", "forward"): moved(2, 1e9, 2, 3e7, 1e7, calls=2),
        ("Net > linear(8x4)", "backward"): moved(4, 2e9, 2, 4e7, 2e7, calls=2),
        ("Net > small(8)", "forward"): moved(1, 1e6, 1, 8e5, 2e5),
        ("Net > add(8)", "forward"): moved(4, 0, 1, 1.5e8, 5e7),
        ("Net > relu(8)", "forward"): moved(1, 0, 1, 1e8, 1e8),
        ("Net > relu(8)", "backward"): own(7 * MS),
        ("Net > view(8)", "forward"): moved(1, 0, 1, 0, 0),
        ("Net > topk(8)", "forward"): moved(1, 0, 1, 8, 8, calls=2),
        ("Net > sort(8)", "forward"): own(1 * MS),
        ("(outside modules)", "outside"): own(50 * MS, 0),
    },
    {"Net": "Net", **NOT_MODULES},
    peak=PEAK,
    steps=2,
)


def row_of(profile: Profile, function: str) -> Row:
    rows = profile.rows(by="function")
    return next(row for row in rows if row.name == function)


def roof(function: str, profile: Profile = BOUND) -> Roofline | None:
    return profile.roofline(row_of(profile, function))


def test_what_bounds_functions() -> None:
    assert roof("linear") == (4, 7 * 10**7, 3 * 10**7, 30.0, "compute", 0.5)
    assert roof("small") == (1, 800_000, 200_000, 1.0, "memory", 0.01)
    assert roof("add") == (1, 15 * 10**7, 5 * 10**7, None, "memory", 0.5)


def test_in_the_phases_that_are_known() -> None:
    assert roof("relu") == (1, 10**8, 10**8, None, "memory", 2.0)  # out of a cache


def test_a_view_moves_nothing_and_what_is_not_known_is_unknown() -> None:
    assert roof("view") == (1, 0, 0, None, "", None)
    assert roof("topk") is None
    assert roof("sort") is None


def test_without_a_device_there_is_an_intensity() -> None:
    for peak in (None, replace(PEAK, bandwidth=None)):
        profile = replace(BOUND, peak=peak)

        assert roof("linear", profile) == (4, 7 * 10**7, 3 * 10**7, 30.0, "", None)
        assert "roof" not in profile.report(full=True)


def test_of_call_sites() -> None:
    names = [row.name for row in BOUND.rows(by="call") if BOUND.roofline(row)]

    assert "Net: linear(8x4)" in names
    assert "Net: sort(8)" not in names
    assert all(BOUND.roofline(row) is None for row in BOUND.rows(by="module"))


def test_on_the_clock_of_the_device() -> None:
    cells = {
        key: replace(totals, device_self_ns=2 * totals.self_ns)
        for key, totals in BOUND.cells.items()
    }
    profile = replace(BOUND, cells=cells, devices=("cuda:0",))

    found = roof("linear", profile)
    assert found is not None
    assert found.reached == 0.25


def test_it_is_told_in_the_tables() -> None:
    text = BOUND.report(full=True, width=150)
    lines = {" ".join(line.split()) for line in text.splitlines()}

    assert any("linear 2 2.00ms 4.00ms 6.00ms" in line for line in lines)
    assert any(line.endswith("47.68MB 30.0 compute 50 %") for line in lines)
    assert any(line.endswith("95.37MB memory 50 %") for line in lines)
    assert any(line.startswith("view") and line.endswith(" 0.00B") for line in lines)
    assert "read and written per step" in text
    assert "100.00 GB/s (by its data sheet)" in text.replace("\n  ", " ")


def test_it_is_exported() -> None:
    rows = json.loads(render_json(BOUND, by="function"))["rows"]
    phases = {row["name"]: row["phases"] for row in rows}
    keys = ("read_bytes", "written_bytes", "intensity", "bound", "roof_reached")

    linear, relu = phases["linear"]["forward"], phases["relu"]["backward"]
    assert [linear[key] for key in keys] == [3 * 10**7, 10**7, 25.0, "compute", 0.5]
    assert [relu[key] for key in keys] == [None] * 5
    lines = list(csv.DictReader(render_csv(BOUND, by="function").splitlines()))
    (add,) = [line for line in lines if line["name"] == "add"]
    assert [add[key] for key in keys] == ["150000000", "50000000", "", "memory", "0.5"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_in_data_frames(library: Library) -> None:
    pytest.importorskip(library, reason="of the extra `test`")

    frame = BOUND.to_dataframe("function", library=library)

    assert frame["read_bytes"].sum() == 7 * 10**7 + 800_000 + 15 * 10**7 + 10**8
    assert frame["intensity"].max() == 2e9 / 6e7


def test_it_is_saved_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    BOUND.save(path)
    read = Profile.load(path)

    assert read == BOUND
    twice = roof("linear", read.merge(BOUND))
    assert twice == (8, 14 * 10**7, 6 * 10**7, 30.0, "compute", 0.5)


def test_the_faster_memory_of_merged_runs() -> None:
    slow = replace(PEAK, bandwidth=Bandwidth(1, "slow"))

    assert higher(PEAK, slow) == higher(slow, PEAK) == PEAK
    assert higher(Peak(10**13, "other"), PEAK) == Peak(10**13, "other", PEAK.bandwidth)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("NVIDIA H100 80GB HBM3", 3350),
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("Tesla T4", 320),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA L40", None),
    ],
)
def test_data_sheets(name: str, gigabytes: int | None) -> None:
    found = data_sheet_bandwidth(name)

    assert (found and found.bytes_per_second) == (gigabytes and gigabytes * 10**9)


def test_more_is_summed_up_than_caches_hold() -> None:
    assert summed_bytes(0) == 64 << 20
    assert summed_bytes(96 << 20) == 192 << 20
    assert summed_bytes(1 << 30) == 512 << 20
    assert largest_cache_bytes() < 1 << 40


def test_the_memory_of_this_machine() -> None:
    found = measured_bandwidth()

    assert found is not None
    assert found.bytes_per_second > 10**7
    assert found.source.startswith("CPU, measured: sum in place of ")
    assert measured_bandwidth() is found
