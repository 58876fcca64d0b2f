"""Training loops with hooks around each step."""
