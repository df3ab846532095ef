"""The API against its own OpenAPI: schemathesis makes requests that fit it, and some that do not.

A request that fits must be answered, once the values that a schema cannot describe (filters, names
of fields, widths of vectors, options that exclude each other) are replaced by good ones. Whatever
is sent, the response is one that OpenAPI lists, and never a 5xx.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schema_hooks import mend
from schemathesis import GenerationMode
from server_app import listening, serving, words_collection
from server_process import TOKEN

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
AT = "/v1/collections/words/documents"
OPERATIONS = 19


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = words_collection(tmp_path_factory.mktemp("schema") / "words.index")
    with pytest.MonkeyPatch.context() as patch, serving(path, patch), listening(path) as url:
        yield url


def test_every_operation(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    reached: set[str] = set()
    statuses: Counter[int] = Counter()

    def send(case: Any, operation: Any, mode: GenerationMode) -> None:
        if mode == GenerationMode.POSITIVE:
            mend(case)
            if case.method == "DELETE" and "key" in case.path_parameters:
                body = {"text": "the cat sat"}
                requests.put(f"{url}{AT}/cat", json=body, headers=HEADERS, timeout=30)
        response = case.call(base_url=url, headers=HEADERS)
        if response.content == b"Invalid HTTP request received.":
            return  # an address that is too long for HTTP, which uvicorn refuses itself
        statuses[response.status_code] += 1
        if 200 <= response.status_code < 300:
            reached.add(operation.label)
        case.validate_response(response, headers=HEADERS)

    generate = settings(
        max_examples=max(2, settings.default.max_examples // 8),  # type: ignore[union-attr]
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    for operation in operations:
        for mode in GenerationMode:
            cases = given(case=operation.as_strategy(generation_mode=mode))
            try:
                generate(cases(lambda case: send(case, operation, mode)))()  # noqa: B023
            except Unsatisfiable:  # without parameters an operation cannot be called wrongly
                assert mode == GenerationMode.NEGATIVE
                assert not list(operation.iter_parameters()) and not operation.body
    assert {operation.label for operation in operations} == reached and len(reached) == OPERATIONS
    assert not [status for status in statuses if status >= 500]
    assert statuses[422] and statuses[200] > OPERATIONS
