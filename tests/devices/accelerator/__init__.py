"""A device that is not CUDA, for what torch's generic interfaces tell of any."""
