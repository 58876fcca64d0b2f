"""When the program began, as far as we can tell."""

from time import perf_counter_ns

#: When this was imported: before torch, if we were told to watch the program.
BEGAN_NS = perf_counter_ns()
