from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import NOT_MODULES, STEP, hand_built, own, table
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.export.rows import flat_records
from torchprof_hooks.reports.text import render

MS = 10**6
LINEAR = "linear(8x4, 4x4, 4)"


def counted(self_ms: int, flops: int) -> Totals:
    return replace(own(self_ms * MS, 2), flops=flops)


#: Net 10 ms, relu 10; fc 5, linear 15 + 30 + 10 (recomputed); outside 20.
TRAINED = hand_built(
    {
        ("Net", "forward"): own(10 * MS, 2),
        ("Net > relu(8x4)", "forward"): own(10 * MS, 2),
        ("Net > Net.fc", "forward"): own(5 * MS, 2),
        (f"Net > Net.fc > {LINEAR}", "forward"): counted(15, 3_000_000),
        (f"Net > Net.fc > {LINEAR}", "backward"): counted(30, 6_000_000),
        (f"Net > Net.fc > {LINEAR}", "recompute"): counted(10, 3_000_000),
        ("(outside modules)", "outside"): own(20 * MS, 0),
    },
    {"Net": "Net", "Net.fc": "Linear", **NOT_MODULES},
    steps=2,
)


def test_the_table() -> None:
    # Net: 55 of 80 ms in linear; fc: 55 of 60. 12 M in 80 ms are 150 M in a second.
    assert render(TRAINED).split("\n\n")[-1] == table("""
floating-point operations per step, with inner calls; self: without; FLOP/s: of all \
calls; no formula: share of time in
  calls that torch cannot count
module        forward  backward  recompute   self  total   FLOP/s  no formula
-----------------------------------------------------------------------------
Net             1.50M     3.00M      1.50M         6.00M  150.00M      31.2 %
  fc: Linear    1.50M     3.00M      1.50M  6.00M  6.00M  200.00M       8.3 %
""")


def test_without_steps_it_is_all_that_was_measured() -> None:
    found = render(replace(TRAINED, steps=0)).split("\n\n")[-1].split("\n")

    assert found[0].startswith("floating-point operations, with inner calls")
    assert found[-1].split()[-5:-3] == ["12.00M", "12.00M"]


def test_rates_are_of_the_devices_time_where_it_was_measured() -> None:
    cells = {
        key: replace(totals, device_self_ns=totals.self_ns // 2)
        for key, totals in TRAINED.cells.items()
    }
    profile = replace(TRAINED, cells=cells, devices=("cuda:0",))
    found = render(profile).split("\n\n")[-1]

    assert "FLOP/s: of all calls on the device" in found
    assert "share of the host's time" in " ".join(found.split())
    assert "300.00M" in found
    assert "31.2 %" in found


def test_no_table_where_nothing_was_counted() -> None:
    assert "floating-point" not in render(STEP)


def records(by: Grouping) -> dict[tuple[str, str], tuple[int, ...]]:
    fields = "self_flops", "cumulative_flops", "self_counted_ns"
    return {
        (record["name"], record["phase"]): (
            *(record[field] for field in fields),
            record["cumulative_counted_ns"],
        )
        for record in flat_records(TRAINED, by)
        if record["cumulative_flops"]
    }


def test_numbers_by_module() -> None:
    assert records("module") == {
        ("Net", "forward"): (0, 3_000_000, 0, 15 * MS),
        ("Net", "backward"): (0, 6_000_000, 0, 30 * MS),
        ("Net", "recompute"): (0, 3_000_000, 0, 10 * MS),
        ("Net.fc", "forward"): (3_000_000, 3_000_000, 15 * MS, 15 * MS),
        ("Net.fc", "backward"): (6_000_000, 6_000_000, 30 * MS, 30 * MS),
        ("Net.fc", "recompute"): (3_000_000, 3_000_000, 10 * MS, 10 * MS),
    }


def test_numbers_by_function() -> None:
    assert records("function") == {
        ("linear", "forward"): (3_000_000, 3_000_000, 15 * MS, 15 * MS),
        ("linear", "backward"): (6_000_000, 6_000_000, 30 * MS, 30 * MS),
        ("linear", "recompute"): (3_000_000, 3_000_000, 10 * MS, 10 * MS),
    }


def test_numbers_are_told_only_where_functions_were_measured() -> None:
    assert all("self_flops" not in record for record in flat_records(STEP, "module"))


@pytest.mark.parametrize("by", ["module", "class", "function", "call"])
def test_own_operations_of_all_rows_add_up_to_those_of_the_cells(by: Grouping) -> None:
    assert sum(row.flops for row in TRAINED.rows(by)) == 12_000_000


def test_what_measuring_took_is_not_counted_time() -> None:
    cells = {
        key: replace(totals, overhead_ns=totals.self_ns // 5)
        for key, totals in TRAINED.cells.items()
    }
    profile: Profile = replace(TRAINED, cells=cells)
    (net,) = [row for row in profile.corrected().rows() if row.name == "Net"]

    counted_ns = [totals.counted_cumulative_ns for totals in net.phases.values()]
    assert sum(counted_ns) == 55 * MS * 4 // 5
