"""What is measured besides the host's clock, where that is read: memory, and the work
of devices."""
