"""searchengine copy."""

from pathlib import Path

import click

from searchengine.cli.options import AS_JSON, Address


@click.command()
@click.argument("source", type=Address())
@click.argument("target", type=Address())
@click.option("--prune", is_flag=True, help="Delete documents of TARGET that SOURCE does not have.")
@AS_JSON
def copy(source: Path | str, target: Path | str, prune: bool, as_json: bool) -> None:
    """Copy the collection SOURCE to TARGET, a folder or a URL.

    A URL is postgresql://USER@HOST/DATABASE#NAME.

    Nothing is encoded again. Both sides are compared at the end. After an
    interruption, or when SOURCE has changed, the same command copies the rest;
    with --prune it also deletes what SOURCE no longer has.

    \b
    Examples:
        searchengine copy papers.index "postgresql://me@localhost/search#papers"
        searchengine copy "postgresql://me@localhost/search#papers" papers.index
    """
    from searchengine.backends.opening import name_of
    from searchengine.cli.console import counted, note, show_json, steps
    from searchengine.upkeep.copies import copy as copy_collection

    with steps() as report:
        copied = copy_collection(source, target, report, prune=prune)
    names = {"source": name_of(source), "target": name_of(target)}
    if as_json:
        show_json(names | copied.as_dict())
    else:
        removed = f", {counted(copied.removed, 'document')} deleted there" if copied.removed else ""
        note(
            f"{counted(copied.written, 'document')} of {counted(copied.documents, 'document')} "
            f"copied to {names['target']}{removed}; both sides are equal (checksum "
            f"{copied.checksum[:12]}, vectors within {copied.farthest:.5f})"
        )
