"""What the slow training steps of a thread did differently from its other ones."""
