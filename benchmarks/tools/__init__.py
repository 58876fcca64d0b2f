"""Profilers in one form: others, and ours."""
