"""Runs the native core under the compiler's sanitizers (`make sanitize`).

Addresses and undefined behaviour: tests that run random programs, functions, passes and
threads. Data races: a program of threads that train, on a device and on the CPU, while
another one reads what they have measured. Python and torch are not built for that; a
race between two places of ours is found all the same, since locks are seen wherever
they are taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Event
from typing import Final

import torch
from torch import nn

from tests.devices.accelerator import device, test_accelerator
from torchprof_hooks import Profiler, profile

ROOT: Final = Path(__file__).parents[1]
#: Where an error is looked for, with what is run there.
MEMORY: Final = (
    *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-m", "not serial and not thorough", "-k", "not build and not compiler"),
    "tests/attribution/test_cores.py",
    "tests/attribution/test_exact_threads.py",
    "tests/invisibility/test_interceptor.py",
    "tests/attribution/test_device_graphs.py",
    "tests/attribution/test_tape.py",
    "tests/attribution/test_tensor_memory.py",
    "tests/attribution/test_memory_owners.py",
    "tests/attribution/test_memory_growth.py",
    "tests/devices/accelerator",
)
RACES: Final = ("-m", "tests.sanitize", "threads")


def sanitize(kind: str, libraries: tuple[str, ...], arguments: tuple[str, ...]) -> int:
    """The exit status of Python with a core that was built for it."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = Path(folder, "c++")
        compiler.write_text(
            f'#!/bin/sh\nexec g++ -fsanitize={kind} -fno-omit-frame-pointer -g "$@"\n'
        )
        compiler.chmod(0o755)
        environment = {
            **os.environ,
            "CXX": str(compiler),
            "XDG_CACHE_HOME": folder,
            "OMP_NUM_THREADS": "1",
            "TORCHPROF_HOOKS_CORE": "native",
        }
        # Not with the libraries loaded: the compiler is no program for them.
        subprocess.run(
            [sys.executable, "-m", "torchprof_hooks", "build"],
            env=environment,
            stderr=subprocess.DEVNULL,  # without them, it cannot be loaded either
            cwd=ROOT,
            check=False,
        )
        environment |= {
            "LD_PRELOAD": " ".join(map(_path, libraries)),
            # Python keeps much until it ends; tests ask for more memory than there is.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66",
        }
        # Some kernels spread addresses more than the sanitizer for threads can bear.
        fixed = ("setarch", "-R") if shutil.which("setarch") else ()
        command = (*fixed, sys.executable, *arguments)
        return subprocess.run(
            command, env=environment, cwd=ROOT, check=False
        ).returncode


def _path(library: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={library}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def train_and_read() -> None:
    """Threads that train, each with a profile of its own, and one that reads these."""
    torch.set_num_threads(1)
    profilers, is_over = list[Profiler](), Event()

    def train(options: tuple[bool, bool]) -> None:
        memory, functions = options
        parts = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]
        model = nn.Sequential(*parts)
        for _ in range(3):
            with profile(memory=memory, functions=functions) as profiler:
                profilers.append(profiler)
                for _ in range(15):
                    model(torch.randn(4, 8)).sum().backward()

    def read() -> int:
        reads = 0
        while not is_over.is_set():
            reads += sum(one.profile.core == "native" for one in profilers[-4:])
        return reads

    with ThreadPoolExecutor(5) as pool:
        reads = pool.submit(read)
        try:
            list(pool.map(train, product((False, True), repeat=2)))
        finally:
            is_over.set()
        print(f"{len(profilers)} profiles, read {reads.result()} times")


def main() -> int:
    if sys.argv[1:] == ["threads"]:
        if test_accelerator.COUNTS_MEMORY:
            # First: the engine makes threads for devices once.
            planted = device.load(device.build())
            test_accelerator.test_threads_that_train_while_they_are_read(planted)
        train_and_read()
        return 0
    device.build()  # while the compiler runs without the sanitizers
    memory = sanitize("address,undefined", ("libasan.so", "libubsan.so"), MEMORY)
    races = sanitize("thread", ("libtsan.so",), RACES)
    print(f"addresses and undefined behaviour: {memory}, races: {races} (0: none)")
    return memory or races


if __name__ == "__main__":
    sys.exit(main())
