"""Tests that run on the planted runtime (`make test-cuda`); those of values on a CUDA
device (`make gpu-check`)."""

import sys
from pathlib import Path

# For what tests and benchmarks share.
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
