"""Behind a proxy: a prefix, the address of the caller; nginx as the docs set it."""

import getpass
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from conftest import REPOSITORY
from server_process import TOKEN, running, vectors_collection
from starlette.testclient import TestClient
from test_load import wait_until

Serve = Callable[..., TestClient]
AT = "/v1/collections/vectors/documents"


@pytest.mark.parametrize("prefix", ["/search", ""], ids=["passed on", "taken off"])
def test_everything_is_below_a_prefix(serve: Serve, prefix: str) -> None:
    client = serve(root_path="/search")
    page = client.get(f"{prefix}/")
    links = re.findall(r'(?:href|src)="([^"#]+)"', page.text)
    assert len(links) == 3
    for link in links:  # relative to the page
        assert client.get(f"{prefix}/{link}").status_code == 200
    script = client.get(f"{prefix}/page/page.js").text  # requests too
    assert not re.search(r"""["'`]/v1""", script) and "v1/" in script
    assert client.get(f"{prefix}/openapi.json").json()["servers"] == [{"url": "/search"}]
    assert client.post(f"{prefix}/v1/search", json={"query": "a bee"}).json()["hits"]
    wrong = client.get(f"{prefix}/v1/search")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    assert client.get("/searching/v1/collections").status_code == 404
    del client.headers["Authorization"]
    assert client.get(f"{prefix}/v1/collections").status_code == 401


def test_only_a_trusted_proxy_names_the_caller(tmp_path: Path) -> None:
    """The last address is the one that the proxy has seen; those before it may be forged."""
    vectors = vectors_collection(tmp_path / "vectors.index")
    forwarded = {"X-Forwarded-For": "203.0.113.7, 198.51.100.9"}
    for trusted, shown in (("127.0.0.1", "198.51.100.9"), ("192.0.2.0/24", "127.0.0.1")):
        with running(tmp_path, [vectors], "--trust-proxy", trusted) as server:
            with server.client() as client:
                assert client.get(f"{AT}/1", headers=forwarded).status_code == 200
            assert server.stop() == 0
        assert any(f" {shown} writer GET {AT}/1 200 " in line for line in server.log)


@contextmanager
def nginx(folder: Path, block: str) -> Iterator[str]:
    """nginx with a block of its configuration, in this user's folder; yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    block = re.sub(r"listen .*", f"listen 127.0.0.1:{port};", block)
    block = re.sub(r"ssl_.*", "", block)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"user {getpass.getuser()}; pid {folder}/nginx.pid; daemon off; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{block}\n}}\n"
    )
    command = ["nginx", "-p", folder, "-e", folder / "errors", "-c", folder / "nginx.conf"]

    def answers() -> bool:
        assert process.poll() is None, process.communicate()
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(answers)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx")
@pytest.mark.parametrize("slash", ["", "/"], ids=["passed on", "taken off"])
def test_nginx_as_the_docs_set_it(tmp_path: Path, slash: str) -> None:
    page = (REPOSITORY / "docs" / "server.md").read_text()
    (block,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    (options,) = re.findall(r"tokens\.txt (--root-path .*)`:", page)
    target = "proxy_pass http://searchengine"
    block = block.replace(f"{target};", f"{target}{slash};")
    vectors = vectors_collection(tmp_path / "vectors.index")
    with running(tmp_path, [vectors], *options.split()) as server:
        block = block.replace("127.0.0.1:8080", server.url.split("/")[2])
        with nginx(tmp_path, block) as url:
            assert httpx2.get(f"{url}/search/").text.startswith("<!doctype html>")
            script = httpx2.get(f"{url}/search/page/page.js")
            assert script.status_code == 200 and script.headers["content-encoding"] == "gzip"
            assert httpx2.get(f"{url}/search").status_code in (301, 308)
            headers = {"Authorization": f"Bearer {TOKEN}"}
            with httpx2.Client(base_url=f"{url}/search", headers=headers, timeout=60) as client:
                for i in range(20):
                    put = client.put(f"{AT}/a%2F{i}%20ü", json={"text": "x", "_vector": [1.0] * 8})
                    assert put.json() == {"key": f"a/{i} ü", "result": "added"}
                assert client.get(f"{AT}/a%2F7%20ü").json()["_id"] == "a/7 ü"
                statuses = {client.get(AT).status_code for _ in range(400)}
                assert statuses == {200, 429}  # more than its rate
        assert server.stop() == 0
    assert any(line.split()[1:3] == ["127.0.0.1", "writer"] for line in server.log)
