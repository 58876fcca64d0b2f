"""What measuring takes, and how a budget is kept."""
