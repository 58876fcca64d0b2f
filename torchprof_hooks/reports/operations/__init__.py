"""Floating-point operations in text."""
