"""The report of a whole program, section by section."""
