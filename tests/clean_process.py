"""Processes started clean: with no thread, connection or lock of this one, and in milliseconds.

They are forked from a process that has imported what they need and has done nothing else, where
"spawn" would import all of it for each. That process, and so they, have the environment of the
first test that starts one.
"""

import multiprocessing

PRELOADED = [
    "hypothesis",
    "pytest",
    "searchengine.indexer.native.library",
    "searchengine.indexer.tuning.tune",
    "searchengine.engine",
    "searchengine.cli",
    "searchengine.upkeep.tuning",
    "searchengine.backends.folder.writer",
]

clean = multiprocessing.get_context("forkserver")
clean.set_forkserver_preload(PRELOADED)
