"""The reference core: the same meaning in plain Python."""
