"""Profiles for other programs: rows as JSON and CSV, stacks for flame graphs."""
