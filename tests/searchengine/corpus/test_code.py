"""Functions and classes of source files: their headings, passages and snippets."""

import ast
import re
from pathlib import Path

import pytest
from cut_documents import Words

from searchengine import SearchEngine
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.formats import code, kinds
from searchengine.corpus.formats.kinds import LANGUAGES, headings_of
from searchengine.ingest.passages import PassageConfig, cut_documents, passage_texts
from searchengine.trainer.errors import install_line

PYTHON = '''\
"""About stacks."""
import os

LIMIT = 3

# Shared by all.
# Two lines.
@cache
def top(stack):
    def inner():
        return stack
    return inner()[-1]


SECOND = 4


class Stack:
    """Last in, first out."""

    size = 0

    def push(self, item):  # 추가
        self.items.append(item)

    limit = LIMIT

    class Frame:
        async def free(self): ...


if os.name == "nt":
    def top_of_windows(): ...

try:
    import fast
except ImportError:
    def fast(): ...

print(top)
'''


def sections(path: Path, content: str) -> dict[str, str]:
    """Title → the first line of the code under it; "" may occur more than once."""
    path.write_text(content)
    (document,) = read_corpus(path)
    assert document.text == content
    headings = headings_of(document.metadata)
    starts = [heading.start for heading in headings]
    assert starts == sorted(set(starts)), "in order, each once"
    pairs = [(h.title, content[h.start :].strip().split("\n")[0].strip()) for h in headings]
    return dict(pairs)


def test_python(tmp_path: Path) -> None:
    assert sections(tmp_path / "a.py", PYTHON) == {
        "top": "# Shared by all.",
        "Stack": "limit = LIMIT",  # the class itself comes first
        "Stack.push": "def push(self, item):  # 추가",
        "Stack.Frame": "class Frame:",
        "Stack.Frame.free": "async def free(self): ...",
        "": "print(top)",
        "top_of_windows": "def top_of_windows(): ...",
        "fast": "def fast(): ...",
    }
    (document,) = read_corpus(tmp_path / "a.py")
    titles = [heading.title for heading in headings_of(document.metadata)]
    assert titles[:6] == ["top", "", "Stack", "Stack.push", "Stack", "Stack.Frame"]
    assert document.metadata["code"] == "python" and document.title == "a"


@pytest.mark.parametrize("content", ["def broken(:\n  x", "print 'python 2'", "", "\n\n", "x = 1"])
def test_python_without_functions_or_with_errors_is_text(tmp_path: Path, content: str) -> None:
    assert sections(tmp_path / "a.py", content) == {}


def test_python_nested_too_deeply_is_text(tmp_path: Path) -> None:
    content = "x = " + "(" * 100_000 + ")" * 100_000 + "\ndef f(): ...\n"
    assert sections(tmp_path / "a.py", content) == {}


def test_every_function_of_this_project_is_found() -> None:
    """Against Python's own positions, on files that nobody wrote for this test."""
    root = Path(code.__file__).parents[2]
    files = sorted(root.rglob("*.py"))
    assert len(files) > 100
    for file in files[::5]:
        text = file.read_text()
        (part,) = code.read_code(file)
        shown = {h.title for h in part.headings}
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                assert node.name in shown, (file, node.name)
                start = next(h.start for h in part.headings if h.title == node.name)
                lead = text[start:].split(f" {node.name}")[0]
                assert re.fullmatch(r"(\s*(#|@|class\b|def\b)?.*\n?)*", lead)


SOURCES = {
    ".js": (
        "// Adds.\nfunction add(a, b) { return a + b }\n\nexport class Stack {\n  push(x) { }\n}\n"
        "const later = async (x) => { await x }\nlater()\n",
        ["add", "Stack", "Stack.push", "later", ""],
    ),
    ".ts": (
        "export abstract class A<T> {\n  private run(x: T): void {}\n}\ninterface B { c(): void }\n"
        "namespace N { export function f() {} }\n",
        ["A", "A.run", "B", "N", "N.f"],
    ),
    ".tsx": ("export const App = () => <p>hi</p>\n", ["App"]),
    ".java": (
        "package a;\npublic class Stack {\n  int n;\n  /** Adds. */\n  @Override\n"
        "  void push(int x) { n = x; }\n  Stack() {}\n  enum Kind { A }\n}\n",
        ["Stack", "Stack.push", "Stack.Stack", "Stack.Kind"],
    ),
    ".go": (
        "package a\n\n// Push adds.\nfunc (s *Stack[T]) Push(x int) {}\n\nfunc main() {}\n\n"
        "type Stack struct { n int }\n",
        ["Stack.Push", "main", "Stack"],
    ),
    ".rs": (
        "#[test]\nfn add(a: u8) -> u8 { a }\nimpl<T> Show for Stack<T> {\n  fn show(&self) {}\n}\n"
        "mod inner { pub struct S { n: u8 } }\n",
        ["add", "Stack<T>", "Stack<T>.show", "inner", "inner.S"],
    ),
    ".c": (
        "#include <a.h>\nstruct p { int x; };\nstruct p *make(int x);\n/* Makes. */\n"
        "static struct p *make(int x)\n{\n  return 0;\n}\n",
        ["p", "", "make"],
    ),
    ".cpp": (
        "namespace n {\ntemplate <class T>\nclass Stack {\n public:\n  void push(T x) {}\n};\n}\n"
        "void n::Stack<int>::pop() {}\n",
        ["n", "n.Stack", "n.Stack.push", "n::Stack<int>::pop"],
    ),
    ".cs": (
        "namespace N {\n  class Stack {\n    [Fast]\n    public void Push(int x) {}\n  }\n}\n",
        ["N", "N.Stack", "N.Stack.Push"],
    ),
    ".rb": (
        "module M\n  class Stack\n    # Adds.\n    def push(x)\n    end\n"
        "    def self.make\n    end\n  end\nend\n",
        ["M", "M.Stack", "M.Stack.push", "M.Stack.make"],
    ),
    ".php": ("<?php\nclass Stack {\n  function push($x) {}\n}\nfunction top() {}\n",
             ["Stack", "Stack.push", "top"]),
    ".sh": ("# Says hi.\nhello() {\n  echo hi\n}\nhello\n", ["hello", ""]),
    ".kt": ("class Stack {\n  fun push(x: Int) {}\n}\nfun top() = 1\n",
            ["Stack", "Stack.push", "top"]),
    ".scala": ("object Main {\n  def run(x: Int) = { x }\n}\n", ["Main", "Main.run"]),
    ".swift": ("struct Stack {\n  func push(_ x: Int) {}\n  init() {}\n}\n",
               ["Stack", "Stack.push", "Stack.init"]),
    ".lua": ("-- Adds.\nfunction M.add(a)\n  return a\nend\n", ["M.add"]),
}  # fmt: skip


@pytest.mark.parametrize("suffix", SOURCES)
def test_other_languages(tmp_path: Path, suffix: str) -> None:
    content, titles = SOURCES[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_text(f"{content}")
    (part,) = code.read_code(path)
    assert [heading.title for heading in part.headings] == titles
    for heading in part.headings:
        assert heading.start == 0 or content[heading.start - 1] in "\n {;", heading


def test_each_grammar_has_a_test_and_is_installed() -> None:
    grammars = {language.grammar for language in LANGUAGES.values()}
    assert {LANGUAGES[suffix].grammar for suffix in SOURCES} | {""} == grammars
    assert not any(language.missing for language in LANGUAGES.values())


def test_letters_before_a_definition_move_nothing(tmp_path: Path) -> None:
    content = "// 고래는 잠을 잔다 🐳\nfunction 잠() {}\nfunction b() {}\n"
    assert sections(tmp_path / "a.js", content) == {
        "잠": "// 고래는 잠을 잔다 🐳",
        "b": "function b() {}",
    }


def test_definitions_of_one_line_begin_where_they_do(tmp_path: Path) -> None:
    content = "function a(){}function b(){};class C{d(){}e(){}}"
    found = sections(tmp_path / "a.min.js", content)
    assert list(found) == ["a", "b", "C", "C.d", "C.e"]
    assert found["C.e"] == "e(){}}"


@pytest.mark.parametrize(
    "content",
    ["function {{{ ", "class A { f( ", "\x7f" * 100, "{" * 50_000, "f(" * 20_000, "}" * 99],
)
def test_broken_source_is_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.js").write_text(content)
    (document,) = read_corpus(tmp_path / "a.js")
    assert document.text == content


def test_without_a_grammar_source_is_text_and_the_note_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.go", "b.go", "c.py"):
        (tmp_path / name).write_text("x")
    there = kinds.find_spec
    monkeypatch.setattr(
        kinds, "find_spec", lambda name: None if name == "tree_sitter_go" else there(name)
    )
    unread = Unread()
    assert len(list(read_corpus(tmp_path, unread=unread))) == 3
    assert unread.sentence() == (
        f"cut at blank lines, not into functions: 2 .go; {install_line('code')} reads them"
    )
    code._parser.cache_clear()
    monkeypatch.setitem(code.LANGUAGES, ".go", kinds.Language("go", "no_such_grammar:language"))
    (part,) = code.read_code(tmp_path / "a.go")
    assert (part.headings, part.metadata) == ((), {"code": "go"})


# ------------------------------------------------------------------------------ passages and search


def test_each_function_is_a_passage_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PYTHON)
    (document,) = read_corpus(tmp_path / "a.py")
    encoder = Words(99)
    (spans,), _ = cut_documents([document], encoder, PassageConfig())
    starts = [heading.start for heading in headings_of(document.metadata)]
    assert [start for start, _ in spans] == [0, *starts]
    assert [end for _, end in spans] == [*starts, len(PYTHON)]
    texts = passage_texts([(document, span) for span in spans], encoder)
    assert texts[0].startswith('a """About stacks."""')
    assert texts[1].startswith("a # Shared by all.")
    assert texts[4].startswith("a     def push(self, item)")


def test_headings_that_fit_no_text_cut_nothing_wrong() -> None:
    bad = [{"start": start, "level": 1, "title": "x"} for start in (99, -5, 4, 0, 4, 2)]
    document = Document("k", "ab cd ef", "", {"code": "go", "headings": bad})
    (spans,), _ = cut_documents([document], Words(), PassageConfig())
    assert spans == [(0, 2), (2, 4), (4, 8)]


def test_a_hit_names_the_function_and_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(PYTHON)
    with SearchEngine.create(tmp_path / "c", Words(99)) as engine:
        engine.add(read_corpus(tmp_path / "src"))
        assert engine.add(read_corpus(tmp_path / "src")).unchanged == 1
        (hit,) = engine.search("push item", mode="text")
        assert hit.heading == "Stack.push"
        assert hit.snippet == "def push(self, item):  # 추가\n    self.items.append(item)"
        engine.verify(encode=5)


def test_a_grammar_installed_later_cuts_again(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(PYTHON)
    (document,) = read_corpus(tmp_path / "src")
    metadata = {name: value for name, value in document.metadata.items() if name != "headings"}
    with SearchEngine.create(tmp_path / "c", Words(99)) as engine:
        engine.add([{"_id": "a.py", "title": "a", "text": PYTHON, **metadata}])
        before = engine.stats().passages
        assert engine.add([document]).changed == 1
        assert engine.stats().passages > before
