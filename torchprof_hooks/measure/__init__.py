"""Clocks: the only code that knows one device from another."""
