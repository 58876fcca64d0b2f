"""What is imported into programs for our sake, and when."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.running import TORCH, Run, plain, profiled, written

WITHOUT = "import json, sys; print(json.dumps(sorted(sys.modules)))"
WITH = "import json, sys, torch; print(json.dumps(sorted(sys.modules)))"

#: What makes up a program's profile when it has ended, and what only some ask for.
LATE = (
    "tabulate",
    "argparse",
    "torchprof_hooks.kernel.overhead",
    "torchprof_hooks.kernel.torch_names.compile_metrics",
    "torchprof_hooks.instruments.kernels.session",
    "torchprof_hooks.kernel.snapshot",
    "torchprof_hooks.program.arguments",
    "torchprof_hooks.program.cli",
    "torchprof_hooks.program.file_tools",
    "torchprof_hooks.program.launch",
    "torchprof_hooks.documents",
)


def loaded(start: Callable[..., Run], *arguments: str, fresh: bool = True) -> set[str]:
    """The modules that a program prints, which has an interpreter of its own."""
    run = start(*arguments, fresh=fresh, loaded=TORCH)
    assert run.code == 0
    assert not (fresh and run.err)
    return set(json.loads(run.out))


def test_a_program_without_torch_has_next_to_nothing_of_ours(tmp_path: Path) -> None:
    path = written(tmp_path, WITHOUT)
    alone, run = loaded(plain, path), loaded(profiled, path)
    # How packages are installed decides whether these two are there anyway.
    assert sorted(run - alone - {"sitecustomize", "__future__"}) == [
        "torchprof_hooks",
        "torchprof_hooks.program",
        "torchprof_hooks.program.after_import",
        "torchprof_hooks.program.handover",
        "torchprof_hooks.version",
    ]


def test_what_is_needed_at_the_end_is_imported_at_the_end(tmp_path: Path) -> None:
    path = written(tmp_path, WITH)
    ours = loaded(profiled, path, fresh=False) - loaded(plain, path, fresh=False)
    assert "torchprof_hooks.program.recorder" in ours
    assert not ours & set(LATE)
    assert "statistics" not in ours
    assert not [name for name in ours if name.split(".")[0] in ("numpy", "sympy")]
    # Torch imports some more by itself, another number in each version.
    assert sum(name.startswith("torchprof_hooks.") for name in ours) < 140


def command(arguments: str) -> set[str]:
    """What the command has imported when the program takes its place."""
    code = (
        "import json, sys, os\n"
        "def execute(*command): print(json.dumps(sorted(sys.modules))); sys.exit()\n"
        "os.execve = execute\n"
        "from torchprof_hooks.program.cli import main\n"
        f"main({arguments})"
    )
    return loaded(plain, "-c", code)


def test_the_command_itself_imports_no_numbers() -> None:
    """It starts a program, and that takes the time that is to be measured."""
    found = command("['--n-ops=5', 'x.py']")
    assert "torchprof_hooks.program.launch" in found
    foreign = ("numpy", "torch", "tabulate", "email", "subprocess")
    assert not [name for name in found if name.split(".")[0] in foreign]
    assert not {name for name in LATE if "reports" in name or "rows" in name} & found


def test_without_options_it_imports_next_to_nothing() -> None:
    found = command("['x.py', '--n-ops=5']")
    # As `python -m` has done before.
    alone = loaded(plain, "-c", "import __future__, runpy; " + WITHOUT)
    assert {name for name in found - alone if not name.startswith("json")} == {
        "torchprof_hooks",
        *(f"torchprof_hooks.{name}" for name in ("program", "version")),
        *(f"torchprof_hooks.program.{name}" for name in ("cli", "handover", "launch")),
    }


def test_importing_the_package_counts_as_beginning() -> None:
    code = (
        "from time import perf_counter_ns\n"
        "import torch\n"
        "from torchprof_hooks.program.startup import begin_from_environment\n"
        "earlier_ns = perf_counter_ns() - 5_000_000_000\n"
        "told = {'TORCHPROF_HOOKS_FLAGS': 'profile=True'}\n"
        "begin_from_environment(told, earlier_ns)\n"
        "torch.nn.Linear(2, 2)(torch.ones(2))"
    )
    said = re.search(r"easuring took at least\s+(\d+)", plain("-c", code).err)
    assert said
    assert 50 < float(said[1]) <= 100
