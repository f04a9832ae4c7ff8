"""`python -m suite`, the twin of the console command `suite`."""

from suite.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
