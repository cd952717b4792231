"""The command line: ``python -m partita`` is the command ``partita``."""

import os
import sys

from partita._partita import run_command


def main() -> int:
    """Runs the command with the arguments of this process and returns its exit code."""
    sys.stdout.flush()
    # The engines in Python run in this interpreter.
    os.environ.setdefault("PARTITA_PYTHON", sys.executable)
    return run_command(["partita", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
