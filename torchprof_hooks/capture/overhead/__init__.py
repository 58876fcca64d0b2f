"""What measuring costs, and in whose time that is."""
