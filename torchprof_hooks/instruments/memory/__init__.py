"""Who has the memory, and what calls do with it."""
