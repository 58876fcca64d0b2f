"""Whole programs: their steps, compilations, and other facts."""
