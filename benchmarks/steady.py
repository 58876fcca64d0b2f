"""What would make two runs of one program differ by chance, held still."""

from __future__ import annotations

from typing import Final

#: Where glibc gives large blocks back to the system, each page of the next one is a
#: fault: some programs take twice as long, and whether it does that depends on what was
#: allocated before.
STEADY: Final = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
}
