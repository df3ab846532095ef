"""Python code that comes with a model folder. Found without running it."""

import json
from collections.abc import Iterator
from pathlib import Path

CONFIGS = ("config.json", "tokenizer_config.json")


def remote_code(folder: Path) -> list[str]:
    """The classes that the folder's configs take from its own code, as transformers names them."""
    return sorted({name for path in _configs(folder) for name in _auto_map(path)})


def _configs(folder: Path) -> Iterator[Path]:
    """Those of the folder and of its modules, one below it."""
    for name in CONFIGS:
        yield folder / name
        yield from folder.glob(f"*/{name}")


def _auto_map(path: Path) -> Iterator[str]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # whoever needs the file says what is wrong with it
        return
    auto_map = config.get("auto_map") if isinstance(config, dict) else None
    for value in auto_map.values() if isinstance(auto_map, dict) else ():
        # A tokenizer has two: a slow and a fast one, each perhaps null.
        yield from (str(name) for name in (value if isinstance(value, list) else [value]) if name)
