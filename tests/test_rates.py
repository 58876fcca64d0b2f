"""Rates of a profile: utilisation of the device, and items per second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.build import MS, NOT_MODULES, STEP, own, profile_of, with_fields
from tests.fake_clock import FakeClock, burn
from torchprof_hooks import Profile
from torchprof_hooks.documents.utilisation import (
    Utilisation,
    counted_types,
    of_row,
)
from torchprof_hooks.measure.peaks import (
    data_sheet_peak,
    device_peak,
    rounds_products,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import PROFILER_NAME
from torchprof_hooks.profiles.peak import Peak
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.totals import Totals

LINEAR = "linear(8x4, 4x4, 4)"
ATTENTION = "scaled_dot_product_attention(3 * 2x4)"
TERA = Peak(10**12, "given as peak_flops")


def counted(self_ms: int, flops: float) -> Totals:
    return replace(own(self_ms * MS), flops=round(flops))


def types(function: str, *inputs: str, autocast: str = "") -> ModuleInfo:
    return ModuleInfo(function, "function", inputs=inputs, autocast=autocast)


#: 100 ms at 10^12 operations per second: 10^11 would be all.
TRAINED = profile_of(
    {
        ("Net", "forward"): own(10 * MS),
        (f"Net > {LINEAR}", "forward"): counted(10, 1e10),
        (f"Net > {LINEAR}", "backward"): counted(20, 2e10),
        (f"Net > {LINEAR}", "recompute"): counted(10, 1e10),
        ("(outside modules)", "outside"): own(50 * MS, 0),
    },
    {
        "Net": "Net",
        LINEAR: types("linear", "float32@cpu", "bfloat16@cpu"),
        **NOT_MODULES,
    },
    peak=TERA,
    steps=1,
)


def net(profile: Profile) -> Row:
    (row,) = [row for row in profile.rows() if row.name == "Net"]
    return row


def test_utilisation() -> None:
    assert TRAINED.utilisation == pytest.approx(Utilisation(0.3, 0.4))
    assert of_row(TRAINED, net(TRAINED)) == pytest.approx((0.6, 0.8))  # in 50 ms


def test_utilisation_of_a_module_on_a_device() -> None:
    cells = {
        key: replace(totals, device_self_ns=2 * totals.self_ns)
        for key, totals in TRAINED.cells.items()
    }
    profile = replace(with_fields(TRAINED, cells=cells), devices=("cuda:0",))
    assert of_row(profile, net(profile)) == pytest.approx((0.3, 0.4))


def test_time_of_measuring_is_left_out() -> None:
    cells = {**TRAINED.cells, ((PROFILER_NAME,), "profiler"): own(60 * MS, 0)}
    profile = with_fields(TRAINED, cells=cells, wall_ns=160 * MS)
    assert profile.utilisation == pytest.approx((0.3, 0.4))


@pytest.mark.parametrize(
    "profile",
    [STEP, replace(STEP, peak=TERA), replace(TRAINED, peak=None), profile_of()],
    ids=["neither", "no operations", "no peak", "empty"],
)
def test_unknown_without_a_peak_or_operations(profile: Profile) -> None:
    assert profile.utilisation is None
    assert "mfu" not in profile.scalars()
    text = profile.report(full=True)
    assert "MFU" not in text
    is_said = "\nUtilisation: unknown, for no operations were counted\n" in text
    assert is_said == (profile.peak is not None)


def test_a_peak_that_is_exceeded_was_none() -> None:
    peak = Peak(10**11, "given as peak_flops")
    text = replace(TRAINED, peak=peak).report(full=True)
    assert "Utilisation: unknown, for the program computes at 400.0 % of what" in text


def test_merged_runs_have_the_higher_peak_whatever_their_order() -> None:
    other = replace(TRAINED, peak=Peak(10**13, "another"))
    for merged in (TRAINED.merge(other), other.merge(TRAINED)):
        assert merged.peak == other.peak
        assert merged.utilisation == pytest.approx((0.03, 0.04))
    assert TRAINED.merge(profile_of()).peak == TERA


def test_the_type_of_most_operations() -> None:
    # Of mixed inputs, the narrowest: so does autocast.
    assert counted_types(TRAINED) == ("bfloat16", "cpu")
    assert counted_types(STEP) == ("", "")
    more = profile_of(
        {(LINEAR, "forward"): counted(1, 10), (ATTENTION, "forward"): counted(1, 11)},
        {
            LINEAR: types("linear", "int64@cuda", "float32@cuda"),
            ATTENTION: types("scaled_dot_product_attention", "float16@cuda"),
        },
    )
    assert counted_types(more) == ("float16", "cuda")


@pytest.mark.parametrize(
    ("inputs", "autocast", "computed"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("float32", "bfloat16|float16", "bfloat16"),
        ("float64", "bfloat16", "float64"),  # left as it is
        ("float32", "", "float32"),
    ],
)
def test_the_type_that_autocast_computes_in(
    inputs: str, autocast: str, computed: str
) -> None:
    info = types("linear", f"{inputs}@cuda", f"{inputs}@cuda", autocast=autocast)
    made = profile_of({(LINEAR, "forward"): counted(1, 10)}, {LINEAR: info})
    assert counted_types(made) == (computed, "cuda")


@pytest.mark.parametrize(
    ("device", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "float16", 756.5),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_dense_peaks_of_data_sheets(device: str, dtype: str, tera: float) -> None:
    source = f"{device}, {dtype}, dense, by its data sheet"
    assert data_sheet_peak(device, dtype) == Peak(round(tera * 1e12), source)


@pytest.mark.parametrize(
    "device",
    [
        *("NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GRID A100-10C"),
        *("NVIDIA H200 NVL", "Tesla V100-SXM2-16GB", "My device"),
    ],
)
def test_others_are_not_guessed(device: str) -> None:
    assert data_sheet_peak(device, "bfloat16") is None


@pytest.fixture
def float32_settings() -> Iterator[Any]:
    """The newer settings of torch (since 2.9), put back afterwards."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    yield settings
    settings.fp32_precision = before


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_products_may_be_rounded(precision: str, request: Any) -> None:
    before = torch.get_float32_matmul_precision()
    request.addfinalizer(lambda: torch.set_float32_matmul_precision(before))
    torch.set_float32_matmul_precision(precision)
    assert rounds_products() == (precision == "high")


@pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch >= 2.9"
)
def test_products_may_be_rounded_by_newer_settings(float32_settings: Any) -> None:
    # torch then refuses to tell the older one: RuntimeError in the user's program.
    float32_settings.fp32_precision = "tf32"
    assert rounds_products()
    float32_settings.fp32_precision = "ieee"
    assert not rounds_products()


def test_no_data_sheet_of_other_devices() -> None:
    assert device_peak("float32", "cpu") is None
    assert device_peak("", "") is None


def trained(**options: Any) -> torchprof_hooks.Profiler:
    """A profiler of two steps, with inputs of 6 rows."""
    model = nn.Linear(16, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torchprof_hooks.profile(functions=True, **options) as prof:
        for _ in range(2):
            model(torch.ones(6, 16)).sum().backward()
            optimizer.step()
    return prof


def test_no_peak_of_a_cpu_is_known() -> None:
    prof = trained()
    assert prof.profile.peak is None
    assert "Utilisation" not in prof.report()


def test_a_peak_that_is_given() -> None:
    prof = trained(peak_flops=2e12)
    assert prof.profile.peak == Peak(2 * 10**12, "given as peak_flops")
    assert "of 2.00 TFLOP/s (given as peak_flops)" in prof.report()
    with pytest.raises(ValueError, match="peak_flops needs functions=True"):
        torchprof_hooks.profile(peak_flops=1e12)


def test_items_per_second(clock: FakeClock) -> None:
    model = nn.Linear(16, 32)
    model.register_forward_pre_hook(lambda *_: burn(20) and None)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torchprof_hooks.profile(items_per_step=6) as prof:
        for _ in range(4):
            model(torch.ones(6, 16)).sum().backward()
            optimizer.step()

    profile = prof.profile
    assert profile.items == 24
    assert profile.items_per_second == pytest.approx(300)  # 6 in 20 ms
    assert profile.scalars()["items_per_second"] == pytest.approx(300)
    assert "300.00 items per second" in prof.report()
    assert profile.merge(profile).items_per_second == pytest.approx(300)
