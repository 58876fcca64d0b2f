"""Every nanosecond and byte is booked on its owner."""
