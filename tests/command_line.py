"""The command line, called in this process: a new one takes seconds to load torch and an encoder.

Tests of signals, of start-up and of the exit code that a shell sees start `COMMAND` instead.
"""

import contextlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner

from searchengine.cli import cli
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.runtimes.runtime_config import VARIABLE, RuntimeConfig

COMMAND = str(Path(sys.executable).with_name("searchengine"))
Done = subprocess.CompletedProcess[str]
_load = Encoder.load


def run(*arguments: str | Path, cwd: Path | None = None, input: str | None = None) -> Done:
    """Run a command; an error that no command should end by is raised."""
    words = [*map(str, arguments)]
    with contextlib.chdir(cwd or "."), mock.patch.object(Encoder, "load", shared_encoder):
        result = CliRunner().invoke(cli, words, input, prog_name="searchengine")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(words, result.exit_code, result.stdout, result.stderr)


def run_json(*arguments: str | Path) -> Any:
    """What a command prints with --json; it must succeed."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shared_encoder(
    source: str | Path,
    *,
    layers: int | None = None,
    shared: bool = False,
    **options: Any,
) -> Encoder:
    """Encoder.load; the packaged encoders stay loaded, which takes seconds with torch."""
    if str(source) not in ("starter", "starter-768"):
        return _load(source, layers=layers, shared=shared, **options)
    if options.get("precision", "auto") == "auto" and os.environ.get(VARIABLE) == "torch":
        options["precision"] = "fp32"
    return _packaged(str(source), RuntimeConfig(**options), layers)


@cache
def _packaged(source: str, config: RuntimeConfig, layers: int | None) -> Encoder:
    return _load(
        source,
        runtime=config.runtime,
        precision=config.precision,
        device=config.device,
        layers=layers,
    )
