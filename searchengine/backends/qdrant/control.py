"""The points of a collection in Qdrant that are no documents: the settings and the rotation."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Entry
from searchengine.backends.qdrant import filters, points
from searchengine.backends.qdrant.connections import Server
from searchengine.backends.qdrant.points import CONTROL
from searchengine.backends.stored import pack, unpack
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats, unit_rows
from searchengine.indexer.config import FLAT_BELOW, SegmentConfig
from searchengine.indexer.search.rotating import Rotation
from searchengine.indexer.storage.basis import Basis

VERSION = 1
_SAMPLE = 20_000  # rows that a rotation is fitted on


@dataclass(frozen=True, slots=True)
class State:
    """The settings, as the control point holds them.

    Attributes:
        settings: the collection settings.
        revision: differs between two states of the settings.
        rotation: of the stored vectors.
    """

    settings: dict[str, Any]
    revision: str
    rotation: Rotation | None


def load(server: Server, control: Mapping[str, Any]) -> State:
    """The state that the payload of the control point describes. Raises CollectionError."""
    version = control["version"]
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        way = "upgrade searchengine to open it" if newer else "create it again"
        raise CollectionError(
            f"{server.name} has points of version {version}, and this searchengine reads version "
            f"{VERSION}; {way}"
        )
    settings = json.loads(control["settings"])
    settings["revision"] = control["revision"]
    rotation = None
    if (name := control.get("rotation")) is not None:
        stored = payload(server, name)
        if stored is None:
            raise CollectionError(
                f"{server.name}: the point {name}, which holds the rotation, is missing; restore "
                "the collection from a snapshot of the server"
            )
        rotation = Rotation(unpack(stored["matrix"]))
    return State(settings, control["revision"], rotation)


def is_collection(server: Server) -> bool:
    return bool(server.call("collection_exists")) and payload(server, CONTROL) is not None


def create(server: Server, dim: int, width: int) -> None:
    """Create the collection of Qdrant, with the indexes of payloads that every query needs."""
    from qdrant_client import models

    passages = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    half = models.Datatype.FLOAT16
    dot = models.Distance.DOT
    vectors = {
        points.COARSE: models.VectorParams(
            size=width, distance=dot, multivector_config=passages, datatype=half
        ),
        points.FULL: models.VectorParams(
            size=dim,
            distance=dot,
            multivector_config=passages,
            datatype=half,
            on_disk=True,
            hnsw_config=models.HnswConfigDiff(m=0),  # only the shortlist is scored by them
        ),
    }
    if not server.call("collection_exists"):  # else a creation that was interrupted goes on
        server.call(
            "create_collection",
            vectors_config=vectors,
            shard_number=server.options.get("shards"),
            replication_factor=server.options.get("replicas"),
        )
    elif server.call("count", exact=True).count:
        raise CollectionError(
            f"{server.name} holds points that are not of searchengine; choose another name after "
            "the #"
        )
    for name, schema in (
        ("number", models.PayloadSchemaType.INTEGER),
        ("size", models.PayloadSchemaType.INTEGER),
        (filters.TERMS, models.PayloadSchemaType.KEYWORD),
    ):
        server.call("create_payload_index", field_name=name, field_schema=schema, wait=True)


def payload(server: Server, point: int | str) -> Mapping[str, Any] | None:
    """The payload of a point; None: there is no such point."""
    found = server.call("retrieve", ids=[point], with_payload=True, with_vectors=False)
    return found[0].payload if found else None


def put(server: Server, point: int | str, payload: Mapping[str, Any]) -> None:
    """Store a point without vectors."""
    from qdrant_client import models

    values = {name: value for name, value in payload.items() if value is not None}
    server.call(
        "upsert", points=[models.PointStruct(id=point, vector={}, payload=values)], wait=True
    )


def store_rotation(server: Server, matrix: Floats) -> str:
    """Store a rotation (D, D) as a point of its own; returns its id."""
    name = str(uuid4())
    put(server, name, {"matrix": pack(matrix)})
    return name


def fitted(entries: Sequence[Entry], settings: Mapping[str, Any]) -> Floats | None:
    """The rotation (D, D) of the first entries; None: too few rows, or none is configured."""
    vectors = [entry.vectors for entry in entries if entry.spans]
    if sum(map(len, vectors)) < FLAT_BELOW:
        return None
    sample = unit_rows(np.concatenate(vectors)[:_SAMPLE])
    config = SegmentConfig.from_dict(settings["index"])
    with tempfile.TemporaryDirectory() as folder:
        return Basis.fitted(lambda: [sample], len(sample), config, Path(folder)).matrix
