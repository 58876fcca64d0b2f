"""Files of profiles that something has happened to: mutants of real ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).parent / "samples"
NAMES = sorted(path.name for path in SAMPLES.glob("*.json"))

#: What may stand in the place of something else.
_NUMBERS = (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 2**126)
_HUGE = tuple(10**power for power in (19, 40, 308, 309, 400, 4000))
_OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0.0, -0.0, 1.5, 1e308, float("nan"), float("inf")),
    *("", "0", "forward", "Net", "\x00", "\ud800", "a\nb;c", "x" * 3000, "%s{0}"),
    *([], {}, [[]], [0], ["Net"], {"path": []}, {"": 0}),
)

#: A place in a document: what holds it, and its key or position there.
_Place = tuple[Any, Any]


def _places(content: Any) -> Iterator[_Place]:
    coming = [content]
    while coming:
        held = coming.pop()
        keys = held if isinstance(held, dict) else range(len(held))
        for key in keys:
            yield held, key
            if isinstance(held[key], (dict, list)):
                coming.append(held[key])


def _some_place(content: Any, rng: random.Random) -> _Place:
    return rng.choice(list(_places(content)))


class _Cell(MutableMapping[str, Any]):
    """A cell of a table, as an object with all its fields."""

    def __init__(self, table: Any, number: int) -> None:
        self._table, self._number = table, number

    def __getitem__(self, name: str) -> Any:
        return self._table[name][self._number]

    def __setitem__(self, name: str, value: Any) -> None:
        self._table[name][self._number] = value

    def __delitem__(self, name: str) -> None:
        del self._table[name][self._number]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._table if name != "names")

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _profiles(content: Any) -> list[Any]:
    """All that are in a file."""
    strata = content.get("program", {}).get("strata", {}).values()
    found = [stratum["profile"] for stratum in strata]
    return [content, *found] if "cells" in content else found


def _cells(profile: Any) -> list[Any]:
    """Before version 5, each is an object."""
    cells = profile["cells"]
    if isinstance(cells, list):
        return cells
    return [_Cell(cells, number) for number in range(len(cells["path"]))]


def _some_cell(content: Any, rng: random.Random) -> Any:
    filled = [cells for profile in _profiles(content) if (cells := _cells(profile))]
    return rng.choice(rng.choice(filled))


def _replace(content: Any, rng: random.Random) -> None:
    held, key = _some_place(content, rng)
    held[key] = rng.choice(rng.choice((_NUMBERS, _HUGE, _OTHERS)))


def _replace_number(content: Any, rng: random.Random) -> None:
    numbers = [(h, k) for h, k in _places(content) if type(h[k]) is int]
    held, key = rng.choice(numbers)
    held[key] = rng.choice((*_NUMBERS, *_HUGE, held[key] * 1000, -held[key]))


def _remove(content: Any, rng: random.Random) -> None:
    held, key = _some_place(content, rng)
    del held[key]


def _rename(content: Any, rng: random.Random) -> None:
    objects = [(h, k) for h, k in _places(content) if isinstance(h, dict)]
    held, key = rng.choice(objects)
    held[rng.choice((key + "_", key[:-1], key.upper(), "calls"))] = held.pop(key)


def _swap(content: Any, rng: random.Random) -> None:
    (held, key), (other, at) = _some_place(content, rng), _some_place(content, rng)
    held[key], other[at] = json.loads(json.dumps([other[at], held[key]]))


def _copy(content: Any, rng: random.Random) -> None:
    lists = [(h, k) for h, k in _places(content) if isinstance(h[k], list) and h[k]]
    held, key = rng.choice(lists)
    held[key] += json.loads(json.dumps(held[key][: rng.randrange(1, 4)]))


def _deepen(content: Any, rng: random.Random) -> None:
    cell = _some_cell(content, rng)
    cell["path"] = (cell["path"] * 20_000)[: rng.choice((3, 40, 1500, 20_000))]


def _nest(content: Any, rng: random.Random) -> None:
    held, key = _some_place(content, rng)
    for _ in range(rng.choice((5, 50, 400))):
        if "program" in content and rng.random() < 0.9:
            part = {"name": "a", "ns": 0, "calls": 1}
            stages = content["program"]["compilation"]["stages"]
            if stages:
                stages[0]["parts"] = [{**part, "parts": stages[0]["parts"]}]
        else:
            held[key] = [held[key]]


def _scale(content: Any, rng: random.Random) -> None:
    """All numbers of a cell, so that they still go together."""
    cell, factor = _some_cell(content, rng), rng.choice((0, 10**3, 10**9, 10**12))
    for name, value in cell.items():
        if type(value) is int and name != "calls":
            cell[name] = value * factor


_JSON_LEVEL: tuple[Callable[[Any, random.Random], None], ...] = (
    _replace,
    _replace_number,
    _remove,
    _rename,
    _swap,
    _copy,
    _deepen,
    _nest,
    _scale,
)


def _reconciled(profile: Any) -> None:
    """Numbers that would be refused for not going together, made to."""
    cells = _cells(profile)
    for cell in cells:
        low, high = sorted((cell["min_ns"], cell["max_ns"]))
        least, most = cell["calls"] * low, cell["calls"] * high
        cell["min_ns"], cell["max_ns"] = low, high
        cell["duration_ns"] = min(max(cell["duration_ns"], least), most)
    profile["wall_ns"] = sum(cell["self_ns"] for cell in cells)


def _mutated_json(text: str, rng: random.Random) -> bytes:
    content = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        rng.choice(_JSON_LEVEL)(content, rng)
    if rng.random() < 0.6:
        try:
            for profile in _profiles(content):
                _reconciled(profile)
        except Exception:
            pass  # it will be refused for something else
    return _dumped(content).encode("utf-8", "surrogatepass")


def _dumped(content: Any) -> str:
    """As JSON, with repeated fields: the encoder in C would not see these."""
    return "".join(json.JSONEncoder(indent=0).iterencode(content))


def _mutated_bytes(text: str, rng: random.Random) -> bytes:
    content = bytearray(text.encode())
    for _ in range(rng.choice((1, 1, 2, 10))):
        start = rng.randrange(len(content))
        kind = rng.randrange(5)
        if kind == 0:
            del content[start:]
        elif kind == 1:
            content[start] ^= 1 << rng.randrange(8)
        elif kind == 2:
            content[start:start] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            del content[start : start + rng.randrange(1, 200)]
        else:
            content[start:start] = content[start : start + rng.randrange(1, 200)]
        if not content:
            break
    return bytes(content)


def mutant(seed: int) -> tuple[str, bytes]:
    """The name of a real file, and what became of it. Equal seeds give equal files."""
    rng = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    text = (SAMPLES / name).read_text(encoding="utf-8")
    mutate = _mutated_bytes if rng.random() < 0.2 else _mutated_json
    try:
        return name, mutate(text, rng)
    except Exception:
        # Nothing there to change any more; or too deep, or too large, to be written.
        return name, _mutated_bytes(text, rng)
