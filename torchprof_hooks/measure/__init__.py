"""Clocks and memory of devices, the place of a process in its run, and signals."""
