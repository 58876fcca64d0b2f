"""Files of profiles: how records are written, read and checked, and their versions."""
