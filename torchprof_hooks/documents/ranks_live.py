"""When rank 0 compares the ranks while a program runs: cheaply, and not too often.

The code that reads and compares files is imported when there are files of all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.profiles.provenance import Provenance

#: With more ranks than this, no line is printed: reading the files of all would take
#: rank 0 seconds, in which the others wait for it.
_MOST_RANKS: Final = 256
#: The largest share of a processor's time that reading and comparing may take.
_MOST_SHARE: Final = 0.01


class RanksWatch:
    """Compares what ranks did lately, each time that `look` is called and it is not too
    early. Only ranks that write into one folder are compared, and only all of them.

    path: the path of the profiles, without ranks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compared: Callable[[list[Path], Provenance], str] | None = None
        self._next_s = 0.0  # too early before this moment

    def look(self, own: Provenance) -> str:
        """The line to print if there is news, else "". Only rank 0 looks.

        own: the provenance of this process.
        """
        is_too_early = time.monotonic() < self._next_s
        if own.rank or not 1 < own.world_size <= _MOST_RANKS or is_too_early:
            return ""
        numbers = range(own.world_size)
        paths = [rank_path(self._path, own._replace(rank=n)) for n in numbers]
        if not all(path.exists() for path in paths):
            return ""
        if self._compared is None:
            from torchprof_hooks.documents.ranks_lately import RanksLately

            self._compared = RanksLately().news
        began_s = time.thread_time()  # not what others do meanwhile
        line = self._compared(paths, own)
        took_s = time.thread_time() - began_s
        self._next_s = time.monotonic() + took_s / _MOST_SHARE
        return line
