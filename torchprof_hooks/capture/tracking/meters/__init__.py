"""What is read along with the host's clock: memory counters, and clocks of devices."""
