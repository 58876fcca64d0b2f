"""``python -m torchprof_hooks``."""

import sys

from torchprof_hooks.program.cli import main

if __name__ == "__main__":
    sys.exit(main())
