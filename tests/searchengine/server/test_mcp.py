"""A real client lists the tools and calls every one: of `searchengine mcp`."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run
from lazy import Lazy, needs
from starlette.testclient import TestClient
from tiny_model import static_table, write_model2vec

from searchengine import SearchEngine

pytestmark = needs("mcp", "mcp")
mcp, ours = Lazy("mcp"), Lazy("searchengine.server.mcp_server")
Serve = Callable[..., TestClient]
DOCUMENTS = [
    {"_id": "whales", "title": "Whales", "text": "A whale rests half of its brain.", "year": 2016},
    {"_id": "owls", "text": "Owls hunt by night.", "year": 2020, "tags": ["birds", "night"]},
    {"_id": "bats", "text": "Bats hunt by night, too.", "year": 2020, "tags": ["night"]},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A collection without an encoder, so that the server loads no torch."""
    path = tmp_path / "notes.index"
    with SearchEngine.create(path, None, dim=2) as engine:
        engine.add(DOCUMENTS, [[1, 0], [0, 1], [0.1, 1]])
    return path


@asynccontextmanager
async def _over_stdio(path: Path) -> Any:
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = mcp.StdioServerParameters(command=COMMAND, args=["mcp", str(path)], env=environment)
    async with mcp.Client(command) as client:
        yield client


def called(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of tools, called one after the other by a client in this process."""

    async def ask() -> list[Any]:
        async with mcp.Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(ask())


def opened(path: Path) -> Any:
    """The tools of a collection that is open meanwhile."""
    return closing(ours.Tools(path))


@pytest.fixture
def server(path: Path) -> Iterator[Any]:
    with opened(path) as tools:
        yield ours.Server(tools)


def refusal(server: Any, name: str, **arguments: Any) -> str:
    (result,) = called(server, (name, arguments))
    assert result.is_error and len(result.content) == 1
    message: str = result.content[0].text
    return message


def test_a_client_calls_every_tool_over_stdio(path: Path) -> None:
    async def session() -> None:
        async with _over_stdio(path) as client:
            assert "3 documents" in client.instructions and "year" in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["search", "get", "similar", "facets"]
            for tool in tools.values():
                assert tool.annotations.read_only_hint and tool.description
                assert tool.input_schema["type"] == "object" and tool.output_schema is not None
                for argument in tool.input_schema["properties"].values():
                    assert argument["description"]

            asked = {"query": "night", "mode": "text", "where": "year >= 2020", "k": 1}
            found = (await client.call_tool("search", asked)).structured_content
            (hit,) = found["hits"]
            assert hit["key"] == "owls" and hit["text"] == "Owls hunt by night."
            assert hit["metadata"] == {"year": 2020, "tags": ["birds", "night"]}

            asked = {"keys": ["whales", "unknown"], "start": 2, "characters": 5}
            got = (await client.call_tool("get", asked)).structured_content
            assert got["unknown"] == ["unknown"]
            assert got["documents"] == [
                {"key": "whales", "title": "Whales", "text": "whale", "start": 2, "length": 32,
                 "metadata": {"year": 2016}},
            ]  # fmt: skip

            near = (await client.call_tool("similar", {"key": "owls"})).structured_content
            assert [hit["key"] for hit in near["hits"]] == ["bats", "whales"]
            assert near["hits"][0]["score"] == pytest.approx(1 / 1.01**0.5, abs=1e-3)

            asked = {"fields": ["year", "tags"], "where": "year > 2000", "most": 1}
            counted = (await client.call_tool("facets", asked)).structured_content
            assert counted == {
                "documents": 3,
                "facets": {
                    "year": [{"value": 2020, "count": 2}],
                    "tags": [{"value": "night", "count": 2}],
                },
                "values": {"year": 2, "tags": 2},
            }

            with SearchEngine.open(path) as other:  # the server holds no lock, and sees the commit
                other.add([{"_id": "new", "text": "Moths fly by night."}], [[0, 1]])
            got = (await client.call_tool("get", {"keys": ["new"]})).structured_content
            assert got["documents"][0]["text"] == "Moths fly by night."

            result = await client.call_tool("search", {"query": "x", "where": "year >"})
            assert result.is_error and "in the filter: expected a value" in result.content[0].text

    asyncio.run(session())


def test_errors_are_one_sentence(server: Any) -> None:
    assert refusal(server, "similar", key="none").endswith("no document 'none'")
    assert refusal(server, "search", k=3) == "query is missing"
    assert refusal(server, "search", query="x", k=0).startswith("k: input should be greater than")
    assert refusal(server, "search", query="x", limit=3).startswith(
        "search has no argument 'limit'"
    )
    assert "has no encoder" in refusal(server, "search", query="x", mode="vector")
    assert "expected the name of a field" in refusal(server, "facets", fields=["year > 1"])
    assert refusal(server, "forget", key="x") == "Unknown tool: forget"


def test_options_of_a_search_reach_the_collection(tmp_path: Path) -> None:
    path = tmp_path / "notes.index"
    with SearchEngine.create(path, str(write_model2vec(tmp_path / "model"))) as engine:
        texts = [
            "the whale sleeps",
            "the whale sleeps",
            "the dog runs",
            "a bird sings far",
            "a car",
        ]
        engine.add({"_id": str(i), "text": text, "year": i} for i, text in enumerate(texts))
    options = {"where": "year < 3", "offset": 1}
    with opened(path) as tools, SearchEngine.open(path) as engine:
        server = ours.Server(tools)
        for count, asked, expected in (
            (5, {}, engine.search("the whale")),
            (2, options, engine.search("the whale", **options)),
            (2, {"query": "whalle", "mode": "text"}, engine.search("whalle", mode="text")),
            (0, {"query": "whalle", "mode": "text", "typo_tolerance": False}, []),
        ):
            (result,) = called(server, ("search", {"query": "the whale"} | asked))
            found = result.structured_content["hits"]
            assert [(hit["key"], hit["score"]) for hit in found] == [
                (hit.key, hit.score) for hit in expected
            ]
            assert len(found) == len(expected) == count
        (result,) = called(server, ("similar", {"key": "2", "where": "year < 4"}))
        found = result.structured_content["hits"]
        expected = engine.similar("2", where="year < 4")
        assert [(hit["key"], hit["score"]) for hit in found] == [
            (hit.key, hit.score) for hit in expected
        ]
        assert len(found) == 3


def test_it_opens_a_collection_again_that_another_encoder_has_built(tmp_path: Path) -> None:
    path, other = tmp_path / "notes.index", tmp_path / "other.index"
    for seed, folder in enumerate((path, other)):
        model = write_model2vec(tmp_path / f"model{seed}", embeddings=static_table(seed=seed))
        with SearchEngine.create(folder, str(model)) as engine:
            engine.add([{"_id": folder.stem, "text": "the whale sleeps in the sea"}])
    asked = ("search", {"query": "the whale sleeps", "mode": "vector"})
    scores = []
    with opened(path) as tools:
        server = ours.Server(tools)
        for name in ("notes", "other"):
            (result,) = called(server, asked)
            (hit,) = result.structured_content["hits"]
            assert hit["key"] == name
            scores.append(hit["score"])
            path.rename(tmp_path / f"{name}.gone")
            if name == "notes":
                other.rename(path)
        assert scores[0] != scores[1]
        assert "notes.index" in refusal(server, "facets", fields=["year"])


def test_a_long_passage_is_shown_as_its_snippet(tmp_path: Path) -> None:
    text = "word " * 1000 + "whale " + "word " * 1000
    with SearchEngine.create(tmp_path / "long.index", None, dim=2) as engine:
        engine.add([{"_id": "long", "text": text}], [[1, 0]])
    with opened(tmp_path / "long.index") as tools:
        (hit,) = tools.search("whale", mode="text")["hits"]
        assert "whale" in hit["text"] and len(hit["text"]) < 2000


@pytest.mark.parametrize(
    "end", [lambda p: p.stdin.close(), lambda p: p.send_signal(signal.SIGTERM)]
)
def test_the_command_ends_with_its_input_or_on_a_signal(
    path: Path, end: Callable[[Any], None]
) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([COMMAND, "mcp", path], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert process.stdout.readline().startswith(b'{"jsonrpc"')
        end(process)
        assert process.wait(20) in (0, -signal.SIGTERM)


def test_a_missing_collection_is_refused_at_once(tmp_path: Path) -> None:
    done = run("mcp", tmp_path / "none.index")
    assert done.returncode == 2 and "none.index" in done.stderr and not done.stdout
