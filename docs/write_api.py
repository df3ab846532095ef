"""Write docs/api: signatures as the source has them, and docstrings, as Markdown.

`make docs` writes the pages before it builds the site; they are not committed.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
API = REPOSITORY / "docs" / "api"
WIDTH = 88  # columns of a signature on one line
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "engine": (
        "searchengine",
        (
            "searchengine.engine:SearchEngine",
            "searchengine.corpus.documents:Document",
            "searchengine.query.hits:Hit",
            "searchengine.query.hits:Hits",
            "searchengine.query.request:Query",
            "searchengine.backends.mode:Mode",
            "searchengine.upkeep.stats:Stats",
            "searchengine.ingest.ingestion:AddSummary",
            "searchengine.ingest.folder_sync:MirrorOptions",
            "searchengine.ingest.folder_sync:Pass",
            "searchengine.ingest.passages:PassageConfig",
            "searchengine.encoders.functions:FunctionEncoder",
            "searchengine.encoders.http:HttpEncoder",
            "searchengine.corpus.files",
            "searchengine.errors",
        ),
    ),
    "measure": (
        "searchengine.measure",
        (
            "searchengine.measure.judgements",
            "searchengine.measure.metrics",
            "searchengine.measure.retrieval",
            "searchengine.measure.bench",
            "searchengine.measure.learning",
            "searchengine.measure.results",
            "searchengine.measure.mining",
        ),
    ),
    "encoder": (
        "searchengine.trainer.encoder",
        (
            "searchengine.trainer.encoder",
            "searchengine.trainer.runtimes.runtime_config",
            "searchengine.trainer.errors",
        ),
    ),
    "training": (
        "searchengine.trainer.training",
        (
            "searchengine.trainer.training.train_config",
            "searchengine.trainer.training.loop",
            "searchengine.trainer.training.losses",
        ),
    ),
    "trainer-evaluation": (
        "searchengine.trainer.evaluation",
        (
            "searchengine.trainer.evaluation.sts",
            "searchengine.trainer.evaluation.sts",
            "searchengine.trainer.evaluation.mteb",
            "searchengine.trainer.evaluation.intervals",
        ),
    ),
    "indexer": (
        "searchengine.indexer",
        (
            "searchengine.indexer.segment",
            "searchengine.indexer.config",
            "searchengine.indexer.tuning.goal",
            "searchengine.indexer.tuning.tune",
            "searchengine.indexer.threads",
            "searchengine.indexer.errors",
        ),
    ),
}
"""Page → its title, and the modules, or classes of modules, that it describes."""
SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples):$")
ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, [\w.]+)*): ?(.*)$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page(name: str) -> str:
    """A page as Markdown."""
    title, targets = PAGES[name]
    parts = [f"# {title}"]
    for target in targets:
        module, _, only = target.partition(":")
        path = source(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        link = f"[{module}](../{path.relative_to(REPOSITORY).as_posix()})"
        if not only:
            parts += [f"## {module}", link, *text(tree)]
        for node in tree.body:
            if only and getattr(node, "name", None) == only:
                assert isinstance(node, ast.ClassDef)
                parts += class_parts(node, "##", link)
            elif not only and isinstance(node, Function | ast.ClassDef) and public(node.name):
                parts += (
                    class_parts(node, "###", "")
                    if isinstance(node, ast.ClassDef)
                    else function_parts([node], "###")
                )
    written = "\n\n".join(part for part in parts if part) + "\n"
    # Docstrings link to the guides; without a page, to the one on training.
    written = re.sub(r"\]\((?=#)", "](training.md", written)
    return re.sub(r"\]\((?!https?:)", "](../", written)


def source(module: str) -> Path:
    """The file of a module."""
    path = REPOSITORY.joinpath(*module.split("."))
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def public(name: str) -> bool:
    """Whether a name is for users."""
    return not name.startswith("_")


def class_parts(node: ast.ClassDef, level: str, link: str) -> Iterator[str]:
    """The heading, the fields or the constructor, the docstring and the methods of a class."""
    yield f"{level} {node.name}"
    yield link
    methods: dict[str, list[Function]] = {}
    for item in node.body:
        if isinstance(item, Function):
            methods.setdefault(item.name, []).append(item)
    if "__init__" in methods:
        yield code(*(signature(method, node.name) for method in methods["__init__"]))
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        fields = [
            f"    {ast.unparse(item)}"
            for item in node.body
            if isinstance(item, ast.AnnAssign | ast.Assign) and public(names(item))
        ]
        yield code("\n".join([f"class {node.name}{f'({bases})' if bases else ''}:", *fields]))
    yield from text(node)
    if "__init__" in methods:
        yield from text(methods["__init__"][0])
    for name, defined in methods.items():
        if public(name):
            yield from function_parts(defined, f"{level}#", f"{node.name}.")


def names(item: ast.AnnAssign | ast.Assign) -> str:
    """The name that is assigned."""
    return ast.unparse(item.target if isinstance(item, ast.AnnAssign) else item.targets[0])


def function_parts(defined: list[Function], level: str, owner: str = "") -> Iterator[str]:
    """The heading, the signatures (several with overloads) and the docstring of a function."""
    shown = [node for node in defined if "overload" in decorators(node)] or defined[:1]
    yield f"{level} {owner}{defined[-1].name}"
    yield code(*(signature(node, node.name) for node in shown))
    yield from text(defined[-1] if len(shown) > 1 else defined[0])


def decorators(node: Function) -> list[str]:
    """The names of its decorators."""
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def signature(node: Function, name: str) -> str:
    """How it is called; each argument on a line of its own if one line is too short."""
    returns = ""
    if node.returns and name == node.name:
        returns = f" -> {ast.unparse(node.returns)}".replace("'", "")
    if {"property", "cached_property"} & set(decorators(node)):
        return f"{name}{returns.replace(' -> ', ': ')}"
    listed = arguments(node.args)
    if listed and listed[0] in ("self", "cls"):
        del listed[0]
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{prefix}{name}({', '.join(listed)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{prefix}{name}(", *(f"    {each}," for each in listed), f"){returns}"])


def arguments(given: ast.arguments) -> list[str]:
    """Each argument with its annotation and default, and the marks / and *."""
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + [*given.defaults]
    listed = [argument(arg, default) for arg, default in zip(positional, defaults, strict=True)]
    if given.posonlyargs:
        listed.insert(len(given.posonlyargs), "/")
    if given.vararg:
        listed.append(f"*{argument(given.vararg, None)}")
    elif given.kwonlyargs:
        listed.append("*")
    listed += map(argument, given.kwonlyargs, given.kw_defaults)
    return listed + ([f"**{argument(given.kwarg, None)}"] if given.kwarg else [])


def argument(arg: ast.arg, default: ast.expr | None) -> str:
    """An argument as the source has it."""
    annotated = arg.arg if arg.annotation is None else f"{arg.arg}: {ast.unparse(arg.annotation)}"
    if default is None:
        return annotated
    return f"{annotated} = {ast.unparse(default)}" if arg.annotation else f"{annotated}={default}"


def code(*blocks: str) -> str:
    """Lines of Python."""
    return "```python\n" + "\n".join(blocks) + "\n```"


def text(node: ast.Module | ast.ClassDef | Function) -> Iterator[str]:
    """The paragraphs of a docstring; its sections as lists, its trees as code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(ast.get_docstring(node) or "")):
        lines = paragraph.split("\n")
        if any(line.startswith(("├", "└", "│")) for line in lines):
            yield "```\n" + paragraph + "\n```"
        elif SECTION.match(lines[0]) and len(lines) > 1:
            yield f"**{lines[0].removesuffix(':')}**"
            yield "\n".join(entries(inspect.cleandoc("\n" + "\n".join(lines[1:])).split("\n")))
        else:
            yield paragraph


def entries(lines: list[str]) -> Iterator[str]:
    """The lines of a section: an entry begins at the margin, and goes on below it indented."""
    for line in lines:
        entry = ENTRY.match(line)
        if entry:
            yield f"* `{entry[1]}`: {entry[2]}"
        else:
            yield line if line.startswith("    ") else f"  {line}"


def main(folder: Path = API) -> None:
    """Write the pages, and their contents."""
    folder.mkdir(exist_ok=True)
    for name in PAGES:
        (folder / f"{name}.md").write_text(page(name), encoding="utf-8")
    contents = "\n".join(["# API", "", "```{toctree}", *PAGES, "```", ""])
    (folder / "index.md").write_text(contents, encoding="utf-8")


if __name__ == "__main__":
    main()
