"""What is read besides the host's clock: memory counters, and clocks of devices."""
