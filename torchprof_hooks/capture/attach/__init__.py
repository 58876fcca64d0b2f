"""What is put on torch while somebody measures, and taken off again."""
