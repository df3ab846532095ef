"""python -m searchengine: the command line."""

from searchengine.cli import cli

if __name__ == "__main__":
    cli(prog_name="searchengine")
