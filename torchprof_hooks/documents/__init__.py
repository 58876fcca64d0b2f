"""Profiles as documents: text, pages, tables, and files for other programs. Nothing
here imports torch."""
