"""A profile as one HTML file that opens without a network."""
