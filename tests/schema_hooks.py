"""What schemathesis needs besides the OpenAPI: values that no schema can describe."""

from typing import Any

DIM = 16
GOOD = {
    "collection": "words",
    "model": "words",
    "where": "year > 2000",
    "group_by": "lang",
    "fields": ["lang"],
}


def mend(case: Any) -> None:
    """Replace what fits the schema and makes no sense."""
    parameters = case.path_parameters
    key = "cat" if case.method == "DELETE" else "bee"  # others are sent after it
    if "name" in parameters:
        parameters["name"] = "words"
    if "key" in parameters:
        parameters["key"] = key if case.method != "PUT" else f"new {parameters['key']}"[:1000]
    if case.query and case.query.get("where") is not None:
        case.query["where"] = "year > 3000"
    case.body = _without_nul(case.body)
    if isinstance(case.body, dict):
        _mend_body(case, case.body)


def _without_nul(value: Any) -> Any:
    """A body without the character U+0000, which metadata must not contain."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_without_nul(each) for each in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(each) for name, each in value.items()}
    return value


def _mend_body(case: Any, body: dict[str, Any]) -> None:
    for name, good in GOOD.items():
        if body.get(name) is not None:
            body[name] = good
    if body.get("dimensions") is not None:
        body["dimensions"] = 1
    if "input" in body:
        body["input"] = "a bb ccc"  # no zeros in its first dimension
    if case.operation.path.endswith("/map"):
        body["query"] = None  # the encoder of words may find none in a question
    if "facets" in body:
        body["facets"] = ["lang"] * min(2, len(body["facets"]))
    if case.method == "PUT":
        body["text"] = "some text"
    for name in ("_id", "_vector", *(("title", "text") if case.method == "PATCH" else ())):
        body.pop(name, None)
    if case.operation.path.startswith("/v1/search"):
        _mend_questions(case, body)


def _mend_questions(case: Any, body: dict[str, Any]) -> None:
    body.pop("timeout", None)  # may be short
    if case.operation.path.endswith("/similar"):
        body.pop("keys", None)
        body |= {"key": "bee", "exact": False, "mode": "auto"}
        return
    one, many = ("query", "vector"), ("queries", "vectors")
    text, vector = many if case.operation.path.endswith("batch") else one
    good = DIM * [0.5]
    if body.get(vector) is not None and body.get(text) is None:
        body[vector] = good if vector == "vector" else [good] * len(body[vector])
        body["mode"] = "vector"
    else:
        body.pop(vector, None)
        asked = body.get(text)
        texts = [asked] if isinstance(asked, str) else asked or []
        if not texts or not all(each.split() for each in texts):  # regular expressions and Python
            # do not agree on what is blank
            body[text] = "a bee" if text == "query" else ["a bee"]
    if body.get("exact"):
        body["mode"] = "vector"
        body.pop("shortlist", None)
