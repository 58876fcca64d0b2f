"""What measuring costs, and whose time that is in."""
