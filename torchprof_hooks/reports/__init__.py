"""Profiles for people and for other programs: pure, without torch."""
