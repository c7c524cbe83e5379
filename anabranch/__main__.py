"""`python -m anabranch`: the `anabranch` command under the name that torchrun starts."""

import sys

from anabranch.cli import main

if __name__ == "__main__":
    sys.exit(main())
