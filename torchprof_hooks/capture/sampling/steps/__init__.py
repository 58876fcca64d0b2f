"""Where steps end: training steps, and evaluations."""
