"""The page: its files, the fields that it filters by, and its map; and the page of the API."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from searchengine.engine import SearchEngine, contract, entries, field_name
from searchengine.indexer.arrays import Floats
from searchengine.server import MAX_FACETS
from searchengine.server.guard import POLICY
from searchengine.server.models import MapRequest
from searchengine.server.responses import respond
from searchengine.server.served import Collection

_SAMPLE, _MAP = 200, 500  # documents that are read for their fields, and documents on a map
_CHARACTERS = 4 << 20  # of documents that are read for their fields
_FEW = 12  # values of a field that are a choice, however small the sample
_NAME, _SHOWN = 60, 200  # characters of a value that is a name, not prose, and that a hit can show
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d:\d\d.*)?)?")
router = APIRouter(tags=["page"], prefix="/v1/collections/{name}")


def mount_files(app: FastAPI) -> None:
    """Serve the pages and their parts."""
    folder = Path(__file__).parent
    for name in ("page", "swagger_ui"):
        app.mount(f"/{name}", StaticFiles(directory=folder / name))
    documentation = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="searchengine",
        swagger_js_url="swagger_ui/swagger-ui-bundle.js",
        swagger_css_url="swagger_ui/swagger-ui.css",
        swagger_favicon_url="page/icon.svg",
    )
    # It has a script of its own, and nothing that a caller has written.
    policy = POLICY.format(" 'unsafe-inline'", " 'unsafe-inline'")
    documentation.headers["Content-Security-Policy"] = policy

    @app.get("/", include_in_schema=False)
    async def search_page() -> Response:
        return FileResponse(folder / "page" / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return documentation


@router.get("/fields")
async def list_fields(served: Collection) -> Response:
    """Fields to filter by, of a sample of at most 200 documents.

    `name`: as filters write it; `kind`: choice, number, date or text; `lists`: whether it has
    lists, which filters test by `contains`; `low` and `high`: of the sample, for numbers and dates.
    """

    def work(engine: SearchEngine) -> list[dict[str, Any]]:
        values: dict[str, list[Any]] = {}
        with engine.collection.reading() as snapshot:
            read = 0
            for i in _sample_ids(snapshot, _SAMPLE):
                (document,) = snapshot.documents([i])
                for name, value in _leaves(document.metadata):
                    values.setdefault(name, []).append(value)
                if (read := read + len(document.text)) > _CHARACTERS:
                    break
        fields = (_described(name, each) for name, each in values.items())
        return [field for field in fields if field is not None][:MAX_FACETS]

    return respond({"fields": await served.read(work)})


def _leaves(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names and values of fields, and of the fields of a field."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from ((field_name((name, inner)), below) for inner, below in value.items())
        else:
            yield field_name((name,)), value


def _described(name: str, values: Sequence[Any]) -> dict[str, Any] | None:
    """A field for the page; None: its values are neither texts, numbers nor truth values."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    atoms = [atom for listed in lists for atom in listed if atom is not None]
    if not atoms or not all(isinstance(atom, str | int | float) for atom in atoms):
        return None
    texts = [atom for atom in atoms if isinstance(atom, str)]
    longest, different = max(map(len, texts), default=0), len(set(atoms))
    kind = "text"
    if not texts and different > _FEW:
        kind = "number"
    elif len(texts) == len(atoms) and all(map(_DATE.fullmatch, texts)):
        kind = "date"
    elif longest > _SHOWN:
        return None
    elif 1 < different <= max(_FEW, len(values) // 3) and longest <= _NAME:
        kind = "choice"
    field = {"name": name, "kind": kind, "lists": any(isinstance(each, list) for each in values)}
    bounds = (min(atoms), max(atoms)) if kind in ("number", "date") else (None, None)
    return field | dict(zip(("low", "high"), bounds, strict=True))


class Projection(NamedTuple):
    """The first two principal components of a sample of documents.

    Attributes:
        version: the commit that it was computed from.
        mean: (D,). axes: (2, D), unit rows, or zeros where the sample has fewer directions.
        explained: share of the variance that they show.
        points: the documents, with their coordinates.
    """

    version: str
    mean: Floats
    axes: Floats
    explained: float
    points: Sequence[dict[str, Any]] = ()

    def place(self, vectors: Floats) -> list[dict[str, float]]:
        """The coordinates x and y of vectors (n, D)."""
        return [{"x": x, "y": y} for x, y in ((vectors - self.mean) @ self.axes.T).tolist()]

    def placed(self, snapshot: contract.Snapshot, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The documents that have vectors, with their coordinates."""
        having, vectors = _first_vectors(snapshot, ids)
        named = zip(snapshot.documents(having, texts=False), self.place(vectors), strict=True)
        return [{"key": each.key, "title": each.title} | place for each, place in named]


@router.post("/map")
async def show_map(served: Collection, body: MapRequest) -> Response:
    """A sample of documents, a question and its hits, on the two main directions of the sample.

    `points` is null if `version`, which names the sample, is that of the request. `explained`:
    share of the variance of the sample that is shown.
    """

    def work(engine: SearchEngine) -> dict[str, Any]:
        vectors = None if body.query is None else engine.encode([body.query])
        with engine.collection.reading() as snapshot:
            # A commit has an id; a server, which has none, is known by its number of documents.
            version = str(snapshot.settings.get("commit_id") or snapshot.count())
            shown = served.projection
            if shown is None or shown.version != version:
                shown = served.projection = _project(snapshot, version)
            stored = snapshot.known(body.keys)
            return {
                "version": version,
                "points": None if version == body.version else shown.points,
                "question": None if vectors is None else shown.place(vectors)[0],
                "hits": shown.placed(snapshot, [state.id for state in stored.values()]),
                "explained": shown.explained,
            }

    return respond(await served.read(work))


def _project(snapshot: contract.Snapshot, version: str) -> Projection:
    ids = _sample_ids(snapshot, _MAP)
    _, vectors = _first_vectors(snapshot, ids)
    mean = vectors.mean(axis=0) if len(vectors) else np.zeros(vectors.shape[1], np.float32)
    _, sizes, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    axes = np.zeros((2, len(mean)), np.float32)
    axes[: len(directions[:2])] = directions[:2]
    energy = sizes**2
    explained = float(energy[:2].sum() / energy.sum()) if energy.any() else 0.0
    plane = Projection(version, mean, axes, explained)
    return plane._replace(points=plane.placed(snapshot, ids))


def _sample_ids(snapshot: contract.Snapshot, n: int) -> list[int]:
    """Ids of n documents drawn at random, ascending; all if they are few. Reads all ids."""
    ids = np.concatenate([np.zeros(0, np.int64), *entries.ids(snapshot)])
    chosen = sorted(Random(0).sample(range(len(ids)), min(n, len(ids))))
    return [int(i) for i in ids[chosen]]


def _first_vectors(snapshot: contract.Snapshot, ids: Sequence[int]) -> tuple[list[int], Floats]:
    """The documents with vectors, by id, and the vector of the first passage of each (n, D).

    The mean of all passages would say more, and of books read gigabytes.
    """
    passages = snapshot.passages(of=ids)
    having, first = np.unique(passages.documents, return_index=True)
    if not having.size:
        return [], np.zeros((0, snapshot.settings["encoder"]["dim"]), np.float32)
    return having.tolist(), snapshot.vectors(passages.ids[first])
