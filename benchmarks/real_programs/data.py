"""Data for programs that would download theirs: random pictures of digits, and text
that is on every machine."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

TRAINING, TEST = 6_000, 1_000
#: Words of each of the files that a language model is trained with.
WORDS = {"train": 60_000, "valid": 6_000, "test": 6_000}


def write_digits(folder: Path) -> None:
    """The files of MNIST, as torchvision looks for them in ``folder/MNIST/raw``."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", TRAINING), ("t10k", TEST)):
        labels = random.integers(0, 10, count, np.uint8)
        pictures = random.integers(0, 256, (count, 28, 28), np.uint8)
        header = struct.pack(">iiii", 0x803, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pictures.tobytes())
        header = struct.pack(">ii", 0x801, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def write_text(folder: Path) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt``, of Python's own library."""
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(os.__file__).parent
    words = iter(
        word
        for path in sorted(library.glob("*.py"))
        for word in (*path.read_text(errors="replace").split(), "\n")
    )
    for part, count in WORDS.items():
        text = " ".join(word for word, _ in zip(words, range(count), strict=False))
        (folder / f"{part}.txt").write_text(text)
