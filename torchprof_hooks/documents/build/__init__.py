"""Builders, which make a document of a profile, a comparison or the ranks of a run."""
