"""Backward passes: which call made which autograd node, and what a pass works for."""
