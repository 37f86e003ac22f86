"""The program `turnlog`, also `python -m turnlog`."""

import signal
import sys


def main() -> int:
    """Run the command line of this process and return the exit code."""
    # Python raises KeyboardInterrupt for SIGINT, in the middle of an import too, which ends in a
    # traceback. While modules load, SIGINT ends the process as it ends any program.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from turnlog.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
