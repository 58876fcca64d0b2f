"""Accelerators: planted ones, and real ones where there are any."""
