"""Backward passes: which call made each autograd node, and what a pass works for."""
