"""Where work really belongs, and what tools say."""
