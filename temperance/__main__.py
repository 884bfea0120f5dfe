"""``python -m temperance``: the command line, where its script is not on the path."""

import sys

from temperance.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
