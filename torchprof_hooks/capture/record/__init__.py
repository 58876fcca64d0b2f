"""What is where: call sites, and the names of modules."""
