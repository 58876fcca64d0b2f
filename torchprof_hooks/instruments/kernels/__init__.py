"""Traced steps: sessions of torch's profiler, and reading them."""
