"""Numbers of programs, recorded: what a change of the code must not change.

``python -m tests.recorded`` records them again; the diff says what became of them.
"""

import json
from pathlib import Path
from typing import Any

NUMBERS = Path(__file__).with_name("numbers.json")


def recorded() -> dict[str, Any]:
    """The numbers of each program, as they were recorded."""
    found: dict[str, Any] = json.loads(NUMBERS.read_text())
    return found


def record(found: dict[str, Any]) -> None:
    """Write numbers of programs, a line for each row."""
    blocks = []
    for name, facts in sorted(found.items()):
        lines = ",\n".join(f"  {json.dumps(fact)}" for fact in facts)
        blocks.append(f"{json.dumps(name)}: [\n{lines}\n]")
    NUMBERS.write_text("{\n" + ",\n".join(blocks) + "\n}\n")
