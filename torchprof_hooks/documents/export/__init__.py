"""Profiles for other programs: stacks, traces, scalars, data frames and charts."""
