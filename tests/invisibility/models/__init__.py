"""Models of other libraries, measured and not."""
