"""Source files: the text as it is, with a heading for each function and class.

Python is parsed by its own parser, other languages by tree-sitter, whose grammars are packages of
the extra `code`. A file of another language, of one whose grammar is not installed, or with errors
that its parser cannot pass over has no headings: it is cut at blank lines, like other texts.

A heading begins with the decorators and comments above a definition, and its title is the
qualified name, such as Stack.push. Code of a file between and after its definitions is under an
empty heading; between the methods of a class it is under the heading of the class.
"""

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from searchengine.corpus.formats.kinds import LANGUAGES, LONGEST_HEADING, Heading, Text
from searchengine.corpus.formats.markdown import lines_of
from searchengine.corpus.text_files import decode, kind, read_bytes

_COMMENT = re.compile(r"[ \t]*(?:#(?!include|define|if|end)|//|/\*|\*|--|@)")
_ENDS = re.compile(r"(?:[\s;,})\]]|end\b)*+")
# Types of nodes; grammars share them.
_FUNCTIONS = frozenset(
    "function_definition function_declaration generator_function_declaration method_definition "
    "method_declaration constructor_declaration destructor_declaration function_item method "
    "singleton_method init_declaration secondary_constructor operator_declaration".split()
)
_CLASSES = frozenset(
    "class_declaration abstract_class_declaration interface_declaration enum_declaration "
    "record_declaration struct_declaration type_spec struct_item enum_item trait_item impl_item "
    "mod_item class_specifier struct_specifier union_specifier namespace_definition "
    "namespace_declaration class module trait_declaration object_declaration object_definition "
    "class_definition trait_definition enum_definition protocol_declaration internal_module".split()
)
_AROUND = frozenset(
    "export_statement lexical_declaration variable_declaration type_declaration "
    "template_declaration".split()
)
_VALUES = ("arrow_function", "function_expression", "generator_function")
_NAMES = ("identifier", "constant", "name", "word")  # ends of types of nodes
_DEEPEST = 100  # nodes below the root that are looked at


class _Definition(NamedTuple):
    """A function or class: its offsets in the text, its name, and the definitions in a class."""

    start: int
    end: int
    name: str
    inner: "Sequence[_Definition]"


def read_code(path: Path) -> Iterator[Text]:
    """The text of a source file; the field `code` names its language. Raises CorpusError."""
    text, encoding = decode(read_bytes(path), path)
    language = LANGUAGES[kind(path)]
    metadata = {"code": language.name} | ({"encoding": encoding} if encoding else {})
    definitions = _parsed(text, language.grammar) if language.grammar else _python(text)
    yield Text(text, "", metadata, tuple(_headings(text, definitions, (0, len(text)), "")))


def _headings(
    text: str, definitions: Sequence[_Definition], span: tuple[int, int], name: str
) -> Iterator[Heading]:
    """Headings of the definitions in a part of the text, and of the code between and after them."""
    start, end = span
    done = start
    for each in definitions:
        begin = _with_comments(text, each.start, done)
        yield from _rest(text, done, begin, name) if done > start else ()
        title = f"{name}.{each.name}" if name else each.name
        yield _heading(begin, title)
        yield from _headings(text, each.inner, (begin, each.end), title)
        done = each.end
    yield from _rest(text, done, end, name) if done > start else ()


def _rest(text: str, start: int, end: int, name: str) -> Iterator[Heading]:
    """A heading for the code between or after definitions, if it is more than their end."""
    rest = text[start:end].lstrip("\r\n;})")
    if not _ENDS.fullmatch(rest):
        yield _heading(end - len(rest), name)


def _heading(start: int, title: str) -> Heading:
    return Heading(start, 1, title[:LONGEST_HEADING])


def _with_comments(text: str, start: int, lowest: int) -> int:
    """Where the line of a definition begins, or the lines of comments directly above it.

    A definition behind other code of its line begins itself. `lowest`: an offset to stay behind.
    """
    line = text.rfind("\n", lowest, start) + 1 or lowest
    if text[line:start].strip():
        return start
    while line > lowest:
        before = text.rfind("\n", lowest, line - 1) + 1 or lowest
        if not _COMMENT.match(text, before, line):
            break
        line = before
    return line


# ----------------------------------------------------------------------------------------- Python


def _python(text: str) -> list[_Definition]:
    """The definitions of a module; none if it is not Python of this interpreter's version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes and the like
            module = ast.parse(text)
        starts = [0, *accumulate(map(len, lines_of(text)))]
        return list(_definitions_of(module, starts))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _definitions_of(node: ast.AST, starts: Sequence[int]) -> Iterator[_Definition]:
    """The functions and classes in a node, also those under conditions, but none in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            is_class = isinstance(child, ast.ClassDef)
            inner = list(_definitions_of(child, starts)) if is_class else []
            yield _Definition(
                starts[first - 1], starts[child.end_lineno or first], child.name, inner
            )
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions_of(child, starts)


# ------------------------------------------------------------------------------- other languages


def _parsed(text: str, grammar: str) -> list[_Definition]:
    """The definitions of a text in a language of tree-sitter; none if it is not installed."""
    parser = _parser(grammar)
    if parser is None:
        return []
    # A byte for each character, so that offsets are the same; names are taken from the text.
    tree = parser.parse(re.sub(r"[^\x00-\x7f]", "x", text).encode())
    return list(_definitions_in(tree.root_node, text, None, 0))


@cache
def _parser(grammar: str) -> Any:
    """The parser of a language ("module:function"); None if it is not installed."""
    module, function = grammar.split(":")
    try:
        import tree_sitter

        language = getattr(import_module(module), function)()
    except ImportError:
        return None
    return tree_sitter.Parser(tree_sitter.Language(language))


def _definitions_in(node: Any, text: str, start: int | None, depth: int) -> Iterator[_Definition]:
    """The functions and classes below a node, but none in functions.

    `start`: where a statement begins of which the node is the only definition.
    """
    for child in node.named_children if depth < _DEEPEST else ():
        name = _name(child, text)
        begin = child.start_byte if start is None else start
        if not name:
            outer = begin if child.type in _AROUND else None
            yield from _definitions_in(child, text, outer, depth + 1)
        elif child.type in _CLASSES:
            inner = list(_definitions_in(child, text, None, depth + 1))
            yield _Definition(begin, child.end_byte, name, inner)
        else:
            yield _Definition(begin, child.end_byte, name, ())


def _name(node: Any, text: str) -> str:
    """The name of a definition; "" for other nodes."""
    if node.type == "variable_declarator":  # const f = () => …
        value = node.child_by_field_name("value")
        if value is None or value.type not in _VALUES:
            return ""
    elif node.type not in _FUNCTIONS and node.type not in _CLASSES:
        return ""
    elif node.type.endswith("_specifier") and node.child_by_field_name("body") is None:
        return ""  # of C: only the type of something
    field = "type" if node.type == "impl_item" else "name"
    name = node.child_by_field_name(field) or node.child_by_field_name("declarator")
    while name is not None and (inner := name.child_by_field_name("declarator")) is not None:
        name = inner  # of C: *f(…) is declared by f
    if name is None:
        name = next((each for each in node.named_children if each.type.endswith(_NAMES)), None)
    shown = "" if name is None else " ".join(text[name.start_byte : name.end_byte].split())
    receiver = node.child_by_field_name("receiver")  # of Go: func (s *Stack) Push(…)
    if receiver is not None:
        words = re.findall(r"\w+", text[receiver.start_byte : receiver.end_byte].split("[")[0])
        shown = f"{words[-1]}.{shown}" if words else shown
    return shown
