"""The program `mixlab`, also as `python -m mixlab`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback, from our first line on

import sys

from mixlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
