# SPDX-License-Identifier: Apache-2.0
"""`python -m thunder`: the command line."""

import sys

from thunder.cli import main

if __name__ == "__main__":
    sys.exit(main())
