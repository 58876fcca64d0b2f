"""Profiles whole programs without changes to their code."""
