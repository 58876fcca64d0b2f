"""What hooks on modules and hooks on functions have in common."""
