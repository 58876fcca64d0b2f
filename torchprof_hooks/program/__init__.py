"""Profiles of whole programs, which need not know of it."""
