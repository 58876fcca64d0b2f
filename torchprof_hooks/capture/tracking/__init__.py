"""What follows one thread, and how it is connected with torch."""
