"""`python -m suite`, the twin of the console command `suite`."""

import os
import sys
import threading

from suite.cli.main import main


def end() -> None:
    """Execute the command of this process and end with its status.

    A thread of a rank that still computes in torch would abort the process at the end of the interpreter.
    """
    status = main()
    if any(thread.daemon for thread in threading.enumerate()):
        sys.stdout.flush()
        os._exit(status)
    raise SystemExit(status)


if __name__ == "__main__":
    end()
