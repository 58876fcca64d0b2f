"""Tables as CSV: names of columns with units, raw numbers."""

from __future__ import annotations

import csv
from io import StringIO

from torchprof_hooks.documents.document import Table


def csv_of(table: Table) -> str:
    """A line for each row, below a line with the names of the columns, which include
    details. A cell is empty where nothing is known.

    Example::

        name,phase,calls,self_ns,cumulative_ns,...
        Net.fc,forward,10,1000000,51750000,...
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", *(each.name or each.title for each in table.columns)])
    values = (column.values for column in table.columns)
    writer.writerows(zip(table.names or table.labels, *values, strict=True))
    return text.getvalue().removesuffix("\n")
