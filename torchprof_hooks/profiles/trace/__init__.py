"""One traced step: what happened in it, and what devices did in it."""
