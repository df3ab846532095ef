"""The page of the server in a real browser: Debian's Chromium, driven by Playwright."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from server_process import TOKEN, Server, running

from searchengine import SearchEngine

CHROMIUM = shutil.which("chromium")
AXE = Path(sys.prefix) / "npm" / "node_modules" / "axe-core" / "axe.min.js"
DOCUMENTS = [
    {
        "_id": f"d{i}",
        "title": f"Title {i}",
        "text": f"whale {'deep ' * (i % 7)}sea {i} <b onclick=x>bold</b> <script>alert(1)</script>",
        "topic": ["sea", "land", "air"][i % 3],
        "year": 2000 + i,
        "url": f"https://example.org/{i}",
    }
    for i in range(30)
]
LONG = [  # 𝄞 is one character, and two units of JavaScript's strings
    {
        "_id": f"../l {i}'",
        "text": f"𝄞 whale {i} " + "A line of a long document.\n" * 38_000 + f"The end {i}.",
        "tags": ["a b", "it's"] if i % 2 else ["a b", "c"],
    }
    for i in range(12)
]


def missing(what: str) -> NoReturn:
    """Skip, but fail where everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(f"no {what}, although CI is set")
    pytest.skip(f"no {what}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without tokens would do; with one, the page has to ask for it."""
    folder = tmp_path_factory.mktemp("page")
    for name, documents in (("sea", DOCUMENTS), ("long", LONG)):
        with SearchEngine.create(folder / f"{name}.index", None, dim=4) as engine:
            engine.add(documents, [[1, i / 10, (i % 5) / 5, 1] for i in range(len(documents))])
    paths = [folder / f"{name}.index" for name in ("sea", "long")]
    with running(folder, paths) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        missing("chromium; apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """The page with a token; fails if it has written an error to the console."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, color_scheme="light")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script(f"sessionStorage.setItem('searchengine-token', '{TOKEN}')")
    page.goto(server.url)
    page.wait_for_selector("#map svg")
    yield page
    context.close()
    assert not errors


def settle(page: Any) -> None:
    """Wait until the hits are those of what stands in the page."""
    page.wait_for_selector("#hits[aria-busy=false]", state="attached")


def ask(page: Any, question: str) -> None:
    page.fill("#query", question)
    settle(page)
    assert f"q={question.split(' ')[0]}" in page.evaluate("location.hash")


def wait_for_status(page: Any, text: str) -> None:
    page.wait_for_selector(f"#status:text-is('{text}')", state="attached")
    settle(page)


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator("#hits h3").all_inner_texts()
    return found


def test_search_and_pages(page: Any) -> None:
    assert page.locator("#collection").input_value() == "sea"
    assert page.is_checked("input[value=text]")  # there is no encoder
    ask(page, "whale")
    wait_for_status(page, "The best 10")
    first = page.locator("#hits > li").first
    assert first.locator("mark").first.inner_text() == "whale"
    assert "<b onclick=x>bold</b>" in first.inner_text()  # shown, not parsed
    assert page.locator("#hits b[onclick]").count() == page.locator("#hits script").count() == 0
    page.click("#more")
    wait_for_status(page, "The best 20")
    assert len(titles(page)) == len(set(titles(page))) == 20
    page.click("#facets label:has-text('land')")  # 10 documents: there are no more
    wait_for_status(page, "The best 10")
    assert page.is_hidden("#more")
    page.click("#chips button")
    ask(page, "10 11 12 13 14 15 16 17 18 19")  # in 10 of 30 documents, as a click shows
    page.click("#more")
    page.wait_for_selector("#more", state="hidden")
    assert page.evaluate("document.activeElement === document.querySelector('#hits').lastChild")
    for cut in ('["topic"]', "[]", '"x"', '["topic'):  # an address has one filter less
        ask(page, "14")
        page.evaluate("cut => { location.hash = `q=whale&is=${cut}`; }", cut)
        wait_for_status(page, "The best 10")
        assert page.is_hidden("#error") and not page.locator("#chips button").count()
    ask(page, "what is a whale in the deep")  # common words are not marked
    assert {each.lower() for each in first.locator("mark").all_inner_texts()} <= {"whale", "deep"}
    for nothing in ("whal ", "nothing-like-it"):
        ask(page, nothing)
        assert page.inner_text("#nothing").startswith("Nothing was found.")


def test_the_words_that_the_server_lists_are_marked(page: Any) -> None:
    """Of Korean only the parts, whatever follows; of others the word."""
    for text, words, marked in (
        ("파드를 만드는 kube-proxy의 파드", ["파드"], ["파드", "파드"]),
        ("東京都の地図", ["東京", "京都"], ["東京都"]),
        ("ยีสต์เปลี่ยนน้ำตาล", ["น้ำ", "้ำต", "ำตา", "ตาล"], ["น้ำตาล"]),
        ("Wale und ein Walross", ["wale"], ["Wale"]),
        ("robots and a rob", ["robots"], ["robots"]),
        ("पक्षी आकाश में", ["पक्षी"], ["पक्षी"]),
    ):
        found = page.evaluate(
            """([text, words]) => import("./page/page.js").then((dom) => dom
              .highlighted(text, words).filter((node) => node.tagName)
              .map((node) => node.textContent))""",
            [text, words],
        )
        assert found == marked


@pytest.mark.long
def test_five_tasks(page: Any) -> None:
    """Find; filter by two values; open; find similar; understand why there is nothing."""
    page.click("#facets label:has-text('land')")
    wait_for_status(page, "10 documents match the filters.")
    assert page.locator("#chips button").inner_text() == "topic: land ×"
    ask(page, "whale")  # find
    assert all(int(title.split()[1]) % 3 == 1 for title in titles(page))
    page.check("#facets label:has-text('air') input")  # filter: either of two values
    page.fill("#facets input[aria-label='year from']", "2017")  # and a range
    page.keyboard.press("Enter")
    wait_for_status(page, "9 documents match")
    assert page.is_checked("#facets label:has-text('air') input")
    assert page.locator("#facets label:has-text('sea') .quiet").inner_text() == "4"
    assert "is=" in page.url and "range=" in page.url
    page.reload()  # the address holds what was asked
    wait_for_status(page, "9 documents match")
    page.click("#hits .whole >> nth=0")  # open
    page.wait_for_selector("#hits > li[data-open=true] .passage")
    title = titles(page)[0]
    page.click("#hits .like >> nth=0")  # similar, under the same filters
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('like')")
    settle(page)
    assert len(titles(page)) == 8 and title not in titles(page)
    assert page.locator("#chips button").first.inner_text() == f"Like: {title} ×"
    page.go_back()
    wait_for_status(page, "9 documents match")
    assert page.input_value("#query") == "whale"
    ask(page, "unicorn")  # why not found, and the ways out: no filter is to blame
    assert "No document has the word unicorn." in page.inner_text("#nothing")
    assert page.locator("#nothing button").count() == 0
    page.fill("#query", '+"sea 3"')
    settle(page)
    assert "leave 9 documents, and none matches the question." in page.inner_text("#nothing")
    page.fill("#facets input[aria-label='year from']", "2030")
    page.keyboard.press("Enter")
    settle(page)
    why = page.inner_text("#nothing")
    assert "No document matches the filters." in why and "something would be found." in why
    page.click("#nothing button:has-text('Remove all filters')")
    wait_for_status(page, "1 document matches")
    ask(page, "whale")
    page.fill("#where", "yeer > 3")  # a condition, with a mistake
    page.keyboard.press("Enter")
    page.wait_for_selector("#nothing:has-text('did you mean year?')")
    page.locator("#chips button").first.click()
    wait_for_status(page, "The best 10")


@pytest.mark.long
def test_long_documents_come_as_snippets(page: Any, server: Server) -> None:
    """Their texts only when they are opened; list fields are filtered by elements."""
    page.goto(f"{server.url}/#in=long")
    page.reload()
    page.wait_for_selector("#facets label", state="attached")
    with page.expect_response("**/v1/search") as answered:
        ask(page, "whale")
    assert len(answered.value.body()) <= 30_000 and len(titles(page)) == 10
    page.locator("#facets label", has_text="it's").click()
    wait_for_status(page, "6 documents match")
    assert page.locator("#chips button").inner_text() == "tags: it's ×"
    page.click("#hits > li >> nth=0 >> .whole")
    page.wait_for_selector("#hits > li[data-open=true]")
    assert page.locator("#hits .hit-text").first.inner_text().rstrip().endswith(".")
    assert page.locator("#hits .passage").inner_text().startswith("𝄞 whale")


@pytest.mark.long
def test_a_collection_that_cannot_be_opened(page: Any) -> None:
    """Its error stands alone; nothing is left of the collection before, and others open."""
    ask(page, "whale")
    error = {"error": {"message": "the collection cannot be opened: lost"}}
    page.route("**/long/stats", lambda route: route.fulfill(status=503, json=error))
    page.fill("#where", "year >>> 3")
    page.select_option("#collection", "long")
    page.wait_for_selector("#error:visible")
    assert page.input_value("#where") == ""  # a condition is of one collection
    assert "cannot be opened: lost" in page.inner_text("#error")
    assert not titles(page) and page.is_hidden("#map-panel") and page.is_hidden("#facets-panel")
    page.select_option("#collection", "sea")
    page.wait_for_selector("#hits > li")
    assert page.is_hidden("#error") and page.is_visible("#map-panel")


def test_keyboard_map_details_and_theme(page: Any) -> None:
    page.locator("#theme").focus()
    page.keyboard.press("/")
    page.keyboard.type("whale")
    page.wait_for_selector("#hits > li")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    key = "document.activeElement.dataset.key"
    assert page.evaluate(key) == page.locator("#hits > li").nth(1).get_attribute("data-key")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits > li:nth-child(2)[data-open=true]")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"
    page.wait_for_selector("#map circle.hit")
    assert page.locator("#map circle.dot").count() == 30
    assert page.locator("#map circle.hit").count() == 10
    page.focus("#map svg")
    for arrow, at in (("Right", 0), ("Right", 1), ("Left", 0), ("Right", 1)):  # as they lie there
        page.keyboard.press(f"Arrow{arrow}")
        assert page.evaluate("document.activeElement.textContent") == f"Title {at}"
    page.keyboard.press("Enter")
    assert page.evaluate(key) == "d1"  # the hit
    page.click("#hits .why >> nth=0")
    assert page.inner_text("#hits .details >> nth=0").split()[:3] == ["rank", "1", "score"]
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Alt+3")
    assert page.is_checked("input[value=hybrid]")
    mac = {"key": "¡", "code": "Digit1", "altKey": True}  # what Alt makes of 1 there
    page.dispatch_event("body", "keydown", mac)
    assert page.is_checked("input[value=vector]")


def check_access(page: Any) -> None:
    """Axe finds nothing in what the page shows now."""
    if not AXE.exists():
        missing(f"axe-core at {AXE}; make setup")
    page.evaluate(AXE.read_text(encoding="utf-8"))  # by the debugger: the policy allows no script
    result = page.evaluate(
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})"
    )
    assert [(each["id"], each["nodes"][0]["html"]) for each in result["violations"]] == []


@pytest.mark.long
def test_without_a_token(browser: Any, server: Server) -> None:
    """The page asks for one. /docs loads nothing from elsewhere, and can send a request."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector("#token-form:visible")
    assert page.is_hidden("#query") and page.is_hidden("#token-unknown")
    page.keyboard.type("0123456789abcdef-mistyped")  # it has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("#token-unknown:visible")
    check_access(page)
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#map svg")
    assert page.is_hidden("#token-form") and TOKEN not in page.url
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda each: errors.append(each.text) if each.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.url}/docs")
    page.click("#operations-server-healthz_healthz_get .opblock-summary-control")
    page.click("text=Try it out")
    page.click("button.execute")
    page.wait_for_selector(".live-responses-table .response-col_status:has-text('200')")
    assert all(url.startswith((server.url, "data:")) for url in asked) and not errors
    context.close()


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("dark", 360),
        pytest.param("light", 360, marks=pytest.mark.long),
        pytest.param("light", 1200, marks=pytest.mark.long),
        pytest.param("dark", 1200, marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing(page: Any, theme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.reload()
    page.wait_for_selector("#map svg")
    if theme == "dark":
        page.click("#theme")
    ask(page, "whale")
    if width < 900:  # on a phone they are folded
        page.click("#facets-panel summary")
    page.click("#facets label >> nth=0")
    page.fill("#where", "year >= 2022")  # axe takes as long as there are hits
    page.press("#where", "Enter")
    page.wait_for_function("() => document.querySelectorAll('#hits > li').length === 3")
    page.click("#hits .why >> nth=0")
    page.wait_for_timeout(300)
    for selector in ("html", ".modes"):  # no overflow: nothing lies on what is beside it
        element = page.locator(selector)
        assert element.evaluate("element => element.scrollWidth - element.clientWidth") <= 0
    page.evaluate("document.querySelector('#hits').setAttribute('aria-busy', true)")  # waiting
    check_access(page)
