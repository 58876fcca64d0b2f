"""The native core: its C++, and what builds, chooses and verifies it."""
