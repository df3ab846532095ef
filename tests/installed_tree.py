"""Copy the packages as a wheel installs them: indexer/ and trainer/ inside searchengine/.

python tests/installed_tree.py FOLDER                 # mypy and import-linter read FOLDER
"""

import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = {"searchengine": ".", "indexer": "searchengine", "trainer": "searchengine"}


def copy_packages(folder: Path) -> None:
    """Replace the packages in `folder` by those of the repository. Keeps what mypy remembers."""
    shutil.rmtree(folder / "searchengine", ignore_errors=True)
    for package, parent in PACKAGES.items():
        shutil.copytree(
            REPOSITORY / package,
            folder / parent / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


if __name__ == "__main__":
    copy_packages(Path(sys.argv[1]))
