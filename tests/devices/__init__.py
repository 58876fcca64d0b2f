"""Accelerators: CUDA on a planted runtime, real ones, and another kind of device."""
