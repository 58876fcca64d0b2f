"""Builders: a profile, a comparison or the ranks of a run as a document."""
