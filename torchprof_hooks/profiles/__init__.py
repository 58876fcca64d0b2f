"""Finished measurements: pure data, without torch."""
