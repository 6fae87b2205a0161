"""`python -m draftwood` is the command line."""

from draftwood.cli.main import run

if __name__ == "__main__":
    run()
