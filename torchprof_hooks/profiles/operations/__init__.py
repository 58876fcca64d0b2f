"""What functions compute: operations as shares of what a device can do, and calls whose
inputs differ in lengths."""
