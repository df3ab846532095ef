"""Wall-clock seconds of a cold `searchengine --help` and `import searchengine`.

python benchmarks/startup.py
"""

import subprocess
import sys
import time

import click
from record import SEARCHENGINE, record, spread

COMMANDS = {
    "searchengine --help": [SEARCHENGINE, "--help"],
    "import searchengine": [sys.executable, "-c", "import searchengine"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


@click.command()
@click.option("--repeats", default=15, show_default=True)
def main(repeats: int) -> None:
    """Run each in turn, in fresh processes."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - start)
    figures = {name: spread(found) for name, found in times.items()}
    for name, found in figures.items():
        click.echo(f"{name:22} {found['median']:.3f} s")
    record("startup", figures)


if __name__ == "__main__":
    main()
