"""Profiles as text, tables and files for other programs. Nothing here imports torch."""
