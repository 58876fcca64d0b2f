"""Writes the golden documents anew."""

from tests.golden import DOCUMENTS, cases

for name, make in cases().items():
    (DOCUMENTS / name).write_text(make() + "\n", encoding="utf-8")
    print(name)
