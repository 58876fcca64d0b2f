"""Everything that torch has samples of, measured and not."""
