"""`python -m agent`, the same as `fabric-ready`."""

import sys

from agent import cli


def main() -> None:
    """Entry point of the installed command."""
    try:
        sys.exit(cli.main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away; nobody is left to tell.
        sys.stderr.close()
        sys.exit(141)


if __name__ == "__main__":
    main()
