"""The program `mixlab`, also as `python -m mixlab`."""

import _signal  # what `signal` wraps: from the first line on, Ctrl-C ends the program without a traceback

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import sys

from mixlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
