"""Every private torch name that this package uses, each behind one function.

torch may rename or drop them. The docstring of each function says what the package
does where the name is gone; no other code has to know. Canaries try the names: tests
ask them, with each version of torch (see `canaries`).
"""
