"""Numbers of the page: as the page's script writes them."""

from __future__ import annotations

import pytest

from torchprof_hooks.reports.html.numbers import bytes_text, share_text, time_text


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (455_125, "455.13 µs"),  # a half, which Python's own way makes 455.12
        (-455_125, "-455.13 µs"),
        (1_500_000, "1.50 ms"),
        (0, "0.00 ns"),
    ],
)
def test_halves_of_times_are_rounded_up(value_ns: int, text: str) -> None:
    assert time_text(value_ns) == text


def test_halves_of_bytes_and_shares_are_rounded_up() -> None:
    assert bytes_text(1024 + 128) == "1.13 KB"
    assert share_text(1, 800) == "0.1\N{NO-BREAK SPACE}%"
    assert share_text(1, 160) == "0.6\N{NO-BREAK SPACE}%"
    assert share_text(1, 400) == "0.3\N{NO-BREAK SPACE}%"
