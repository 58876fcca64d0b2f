"""A gate for performance in tests: the fixture ``torchprof`` of a pytest plugin."""
