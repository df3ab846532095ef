"""A real client lists the tools and calls every one: of `searchengine mcp`."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run
from lazy import Lazy, needs
from tiny_model import static_table, write_model2vec

from searchengine import SearchEngine

pytestmark = needs("mcp", "mcp")
mcp, ours = Lazy("mcp"), Lazy("searchengine.server.mcp_server")
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


@pytest.fixture
def server(path: Path) -> Iterator[Any]:
    with ExitStack() as engines:
        yield ours.Server(ours.Tools(engines, path))


def called(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """The results of tools, called one after the other by a client."""

    async def ask() -> list[Any]:
        async with mcp.Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(ask())


def test_a_client_calls_every_tool_over_stdio(path: Path) -> None:
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = mcp.StdioServerParameters(command=COMMAND, args=["mcp", str(path)], env=environment)
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (
            "get",
            {"keys": ["whales", "unknown"], "start": 2, "characters": 5},
            {
                "documents": [
                    {"key": "whales", "title": "Whales", "text": "whale", "start": 2, "length": 32,
                     "metadata": {"year": 2016}},
                ],
                "unknown": ["unknown"],
            },
        ),
        (
            "facets",
            {"fields": ["year", "tags"], "where": "year > 2000", "most": 1},
            {
                "documents": 3,
                "facets": {
                    "year": [{"value": 2020, "count": 2}],
                    "tags": [{"value": "night", "count": 2}],
                },
                "values": {"year": 2, "tags": 2},
            },
        ),
    ]  # fmt: skip

    async def session() -> None:
        async with mcp.Client(command) as client:
            assert "3 documents" in client.instructions and "year" in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["search", "get", "similar", "facets"]
            for tool in tools.values():
                assert tool.annotations.read_only_hint and tool.description
                assert tool.input_schema["type"] == "object" and tool.output_schema is not None
                assert all(each["description"] for each in tool.input_schema["properties"].values())
            for name, arguments, expected in calls:
                assert (await client.call_tool(name, arguments)).structured_content == expected
            asked = {"query": "night", "mode": "text", "where": "year >= 2020", "k": 1}
            (hit,) = (await client.call_tool("search", asked)).structured_content["hits"]
            assert (hit["key"], hit["text"]) == ("owls", "Owls hunt by night.")
            assert hit["metadata"] == {"year": 2020, "tags": ["birds", "night"]}
            near = (await client.call_tool("similar", {"key": "owls"})).structured_content["hits"]
            assert [hit["key"] for hit in near] == ["bats", "whales"]
            assert near[0]["score"] == pytest.approx(1 / 1.01**0.5, abs=1e-3)
            with SearchEngine.open(path) as other:  # the server holds no lock, and sees the commit
                other.add([{"_id": "new", "text": "Moths fly by night."}], [[0, 1]])
            got = (await client.call_tool("get", {"keys": ["new"]})).structured_content
            assert got["documents"][0]["text"] == "Moths fly by night."

    asyncio.run(session())


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("similar", {"key": "none"}, "no document 'none'"),
        ("search", {"k": 3}, "query is missing"),
        ("search", {"query": "x", "k": 0}, "k: input should be greater than"),
        ("search", {"query": "x", "limit": 3}, "search has no argument 'limit'"),
        ("search", {"query": "x", "mode": "vector"}, "has no encoder"),
        ("search", {"query": "x", "where": "year >"}, "in the filter: expected a value"),
        ("facets", {"fields": ["year > 1"]}, "expected the name of a field"),
        ("forget", {"key": "x"}, "Unknown tool: forget"),
    ],
)
def test_errors_are_one_sentence(
    server: Any, tool: str, arguments: dict[str, Any], message: str
) -> None:
    (result,) = called(server, (tool, arguments))
    assert result.is_error and len(result.content) == 1 and message in result.content[0].text


def test_options_of_a_search_reach_the_collection(tmp_path: Path) -> None:
    """A long passage is shown as its snippet."""
    path = tmp_path / "notes.index"
    with SearchEngine.create(path, str(write_model2vec(tmp_path / "model"))) as engine:
        texts = [*["the whale sleeps"] * 2, "the dog runs", "a bird sings far", "a car"]
        engine.add({"_id": str(i), "text": text, "year": i} for i, text in enumerate(texts))
    options: dict[str, Any] = {"where": "year < 3", "offset": 1}
    with ExitStack() as engines, SearchEngine.open(path) as engine:
        tools = ours.Tools(engines, path)
        for found, expected in (
            (tools.search("the whale", **options), engine.search("the whale", **options)),
            (tools.search("whalle", mode="text"), engine.search("whale", mode="text")),
            (tools.similar("2", where="year < 4"), engine.similar("2", where="year < 4")),
        ):
            pairs = [(hit["key"], hit["score"]) for hit in found["hits"]]
            assert pairs == [(hit.key, hit.score) for hit in expected] and pairs
        engine.add([{"_id": "long", "text": f"{'word ' * 1000} shark {'word ' * 1000}"}])
        (hit,) = tools.search("shark", mode="text")["hits"]
        assert "shark" in hit["text"] and len(hit["text"]) < 2000


def test_it_opens_a_collection_again_that_another_encoder_has_built(tmp_path: Path) -> None:
    path, other = tmp_path / "notes.index", tmp_path / "other.index"
    for seed, folder in enumerate((path, other)):
        model = write_model2vec(tmp_path / f"model{seed}", embeddings=static_table(seed=seed))
        with SearchEngine.create(folder, str(model)) as engine:
            engine.add([{"_id": folder.stem, "text": "the whale sleeps in the sea"}])
    scores = []
    with ExitStack() as engines:
        tools = ours.Tools(engines, path)
        for name in ("notes", "other"):
            (hit,) = tools.search("the whale sleeps", mode="vector")["hits"]
            assert hit["key"] == name
            scores.append(hit["score"])
            path.rename(tmp_path / f"{name}.gone")
            if name == "notes":
                other.rename(path)
        assert scores[0] != scores[1]


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
