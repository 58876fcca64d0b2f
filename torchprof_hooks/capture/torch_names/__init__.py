"""Every private torch name that this package uses, each behind one function.

torch may rename or drop them. A function whose name is gone says in its docstring
what the package then does instead; nothing else in the package has to know.
"""
