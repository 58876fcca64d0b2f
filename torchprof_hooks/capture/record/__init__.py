"""What is measured, and where it is booked: call sites, names of modules, logs."""
