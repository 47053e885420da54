"""`python -m mixlab` is `mixlab`."""

import sys

from mixlab.cli import main

sys.exit(main())
