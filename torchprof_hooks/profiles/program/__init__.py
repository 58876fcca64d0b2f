"""Whole programs: their steps, and what is known of them besides times."""
