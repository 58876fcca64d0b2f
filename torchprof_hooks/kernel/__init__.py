"""The only code that registers anything with torch."""
