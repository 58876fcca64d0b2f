"""What the README shows of the results: tables and pictures."""
