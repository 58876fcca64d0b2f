"""Floating-point operations, as shares of what a device can do."""
