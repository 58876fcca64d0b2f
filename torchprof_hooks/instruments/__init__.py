"""What is measured beside the time of calls: each file or folder is one instrument."""
