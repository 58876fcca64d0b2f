"""What holds of the documents of any profile: own times add up in every table, no line
is wider than asked for, and JSON is as the schema says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.build import FUNCTIONS
from tests.documents.found import column, exit_document, page_document
from tests.documents.runs import ALLOCATING, BUSY, COUNTED, LOOP, RUN, TRAINED
from tests.documents.test_json import SCHEMA
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.tables import grouped_table
from torchprof_hooks.documents.document import Table
from torchprof_hooks.documents.render.terminal import display_width
from torchprof_hooks.documents.report import program_text, to_json
from torchprof_hooks.profiles.names import GROUPINGS, Grouping

known = st.sampled_from([RUN, LOOP, TRAINED, COUNTED, ALLOCATING, BUSY, FUNCTIONS])
any_profile = profiles | known


def assert_sums(table: Table, own_ns: int) -> None:
    """A column of nothing is left out."""
    own = [c.values for c in table.columns if c.name == "self_ns"]
    values: list[Any] = [value for found in own for value in found if value]
    assert sum(values) == own_ns
    assert sum(table.shares) == pytest.approx(1 if own_ns else 0)


@given(any_profile, st.sampled_from(GROUPINGS))
def test_own_times_add_up_in_every_table(profile: Profile, by: Grouping) -> None:
    page = page_document(profile)
    shown_ns: Any = page.numbers["shown_ns"]
    for block in page.blocks:
        if (
            block.name.startswith(("tree.modules", "rows."))
            and block.name != "rows.call"
        ):
            assert isinstance(block, Table)
            assert_sums(block, shown_ns)
    for loop_alone, own_ns in ((False, profile.wall_ns), (True, shown_ns)):
        for block in exit_document(profile, ignore_first_call=loop_alone).blocks:
            if block.name in ("class", "ops", "apply") and isinstance(block, Table):
                assert_sums(block, own_ns)
    table = grouped_table(profile, by, "self")
    assert_sums(table, profile.wall_ns)
    own = column(table, "self_ns")
    assert own == sorted(own, reverse=True)


@given(any_profile, st.sampled_from([60, 80, 120, 200]))
def test_no_line_is_wider_than_asked_for(profile: Profile, width: int) -> None:
    wide = max(width, 80)
    screen = profile.report(width=width)
    assert len(screen.splitlines()) <= 40
    for text, most in (
        (screen, width),
        (profile.report(full=True, width=wide), wide),
        (program_text(profile, width=wide), wide),
    ):
        assert max(map(display_width, text.splitlines())) <= most


@given(any_profile, st.sampled_from([None, *GROUPINGS]))
def test_json_is_as_the_schema_says(profile: Profile, by: Grouping | None) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(to_json(profile, by)))
