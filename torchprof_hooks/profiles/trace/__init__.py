"""One traced step: what happened in it, and how much of it devices idled."""
