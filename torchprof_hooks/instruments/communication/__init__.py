"""What a program exchanges with other processes, and how it is noticed."""
