"""Functions: which are followed, where they are called, and what they do."""
