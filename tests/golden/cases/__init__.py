"""Cases of golden documents (see `tests.golden`)."""
