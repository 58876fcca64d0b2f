"""Files of profiles: how they are written and read. Nothing here imports torch."""
