"""The profiles of all ranks of a run, side by side."""
