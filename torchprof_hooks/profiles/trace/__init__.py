"""One traced step: what happened in it, and what its memory would be otherwise."""
