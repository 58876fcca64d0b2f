"""Which mutants there are of a source in C++."""

from __future__ import annotations

from tests.mutate import CAPTURE, NATIVE_FILES, ROOT
from tests.native_mutants import mutated_lines

SOURCE = """\
#include "a < b.h"
// a + b
void f() {
  if (!done) return;  // a + b
  total_ns += end_ns - start_ns;
  log->book(node,
            end_ns);
  log->book(node);
  PyErr_Clear();
  std::vector<int> found = a < b && g("c == d");
}
"""


def test_operators_conditions_sums_and_calls_are_changed_one_at_a_time() -> None:
    assert [(line, after.strip()) for line, _, after in mutated_lines(SOURCE)] == [
        (4, "if (done) return;  // a + b"),
        (5, "total_ns -= end_ns - start_ns;"),
        (5, "total_ns += end_ns + start_ns;"),
        (5, "total_ns += 0;"),
        (8, ";"),
        (10, 'std::vector<int> found = a <= b && g("c == d");'),
        (10, 'std::vector<int> found = a < b || g("c == d");'),
    ]


def test_each_native_file_that_books_time_has_some() -> None:
    for name in NATIVE_FILES:
        assert list(mutated_lines((ROOT / CAPTURE / name).read_text())), name
