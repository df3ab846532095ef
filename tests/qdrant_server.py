"""Qdrant without a server: the client's local mode (NumPy), and the engine in this process.

`local` is a re-implementation in Python: it has no graph, no float16 and no network. `edge` is the
engine that the server runs (qdrant-edge-py), one shard of it, behind the methods of QdrantClient
that the backend calls. Neither runs the network or a cluster.
"""

import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

_clients: dict[str, Any] = {}


def new_url(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a collection that does not exist yet, on a "server" of its own."""
    pytest.importorskip("qdrant_client", reason="needs the extra qdrant")
    from searchengine.backends.qdrant import connections

    real = connections.connect
    monkeypatch.setattr(
        connections, "connect", lambda address, key: _clients.get(address) or real(address, key)
    )
    host = f"{kind}-{uuid4().hex[:12]}"
    _clients[f"http://{host}:6333"] = Shared(_local() if kind == "local" else _edge())
    return f"qdrant://{host}#papers"


def client_of(url: str) -> Any:
    """The client behind a URL of `new_url`."""
    return _clients[f"http://{url.removeprefix('qdrant://').partition('#')[0]}:6333"]


class Shared:
    """A client for several threads, one call at a time, which `close` leaves open.

    `before`: called with the name of each method and its arguments, before it is called.
    `after`: called with the name, the arguments and the result, which it may replace.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.before: Callable[[str, Any], None] = lambda method, arguments: None
        self.after: Callable[[str, Any, Any], Any] = lambda method, arguments, result: result
        self._lock = threading.RLock()

    def close(self) -> None:
        """The collection outlives the connection, as on a server."""

    def create_payload_index(self, **arguments: Any) -> None:
        """Local mode has none, and warns."""
        if isinstance(self.client, EdgeClient):
            self.client.create_payload_index(**arguments)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(**arguments: Any) -> Any:
            self.before(name, arguments)
            with self._lock, warnings.catch_warnings():
                # Local mode compares all points, and says so.
                warnings.filterwarnings("ignore", "Local mode performs exact")
                return self.after(name, arguments, method(**arguments))

        return call


def _local() -> Any:
    from qdrant_client import QdrantClient

    return QdrantClient(":memory:")


def _edge() -> Any:
    pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
    return EdgeClient()


@cache
def _edge_module() -> Any:
    import qdrant_edge

    return qdrant_edge


class EdgeClient:
    """One shard of the engine, with the methods of QdrantClient that the backend calls."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qdrant-")
        self.shards: dict[str, Any] = {}

    def info(self) -> Any:
        return SimpleNamespace(version="1.15 (edge)")

    def collection_exists(self, collection_name: str) -> bool:
        return collection_name in self.shards

    def create_collection(self, collection_name: str, vectors_config: Any, **_: Any) -> None:
        edge = _edge_module()
        passages = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
        config = edge.EdgeConfig(
            vectors={
                name: edge.EdgeVectorParams(
                    size=params.size,
                    distance=edge.Distance.Dot,
                    multivector_config=passages,
                    datatype=edge.VectorStorageDatatype.Float16,
                    on_disk=params.on_disk,
                    hnsw_config=None
                    if params.hnsw_config is None
                    else edge.HnswIndexConfig(params.hnsw_config.m, 100, 10),
                )
                for name, params in vectors_config.items()
            },
            hnsw_config=edge.HnswIndexConfig(16, 100, 10),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=10),
        )
        path = f"{self._folder.name}/{collection_name}"
        self.shards[collection_name] = edge.EdgeShard.create(path, config)

    def create_payload_index(
        self, collection_name: str, field_name: str, field_schema: Any, **_: Any
    ) -> None:
        edge = _edge_module()
        schema = getattr(edge.PayloadSchemaType, field_schema.value.capitalize())
        self._update(collection_name, edge.UpdateOperation.create_field_index(field_name, schema))

    def get_collection(self, collection_name: str) -> Any:
        from qdrant_client import models

        info = self.shards[collection_name].info()
        return SimpleNamespace(
            status=models.CollectionStatus.GREEN,
            points_count=info.points_count,
            indexed_vectors_count=info.indexed_vectors_count,
            config=SimpleNamespace(params=SimpleNamespace(shard_number=1)),
        )

    def optimize(self, collection_name: str) -> None:
        """Build the graphs, which a server does by itself."""
        while self.shards[collection_name].optimize():
            pass

    def upsert(self, collection_name: str, points: Any, **_: Any) -> None:
        edge = _edge_module()
        rows = [edge.Point(_id(p.id), p.vector, p.payload) for p in points]
        self._update(collection_name, edge.UpdateOperation.upsert_points(rows))

    def delete(self, collection_name: str, points_selector: Any, **_: Any) -> None:
        operation = _edge_module().UpdateOperation
        if hasattr(points_selector, "filter"):
            change = operation.delete_points_by_filter(converted(points_selector.filter))
        else:
            change = operation.delete_points([_id(each) for each in points_selector.points])
        self._update(collection_name, change)

    def set_payload(self, collection_name: str, payload: Any, points: Any, **_: Any) -> None:
        operation = _edge_module().UpdateOperation
        if hasattr(points, "filter"):
            change = operation.set_payload_by_filter(converted(points.filter), payload)
        else:
            change = operation.set_payload([_id(each) for each in points.points], payload)
        self._update(collection_name, change)

    def retrieve(self, collection_name: str, ids: Any, with_payload: Any, with_vectors: Any) -> Any:
        return self.shards[collection_name].retrieve(
            [_id(each) for each in ids], with_payload=with_payload, with_vector=with_vectors
        )

    def scroll(
        self,
        collection_name: str,
        scroll_filter: Any,
        limit: int,
        order_by: Any = None,
        with_payload: Any = True,
        with_vectors: Any = False,
    ) -> Any:
        edge = _edge_module()
        order = None if order_by is None else edge.OrderBy(order_by.key, edge.Direction.Asc)
        return self.shards[collection_name].scroll(
            edge.ScrollRequest(
                limit=limit,
                filter=converted(scroll_filter),
                with_payload=with_payload,
                with_vector=with_vectors,
                order_by=order,
            )
        )

    def count(self, collection_name: str, exact: bool, count_filter: Any = None) -> Any:
        request = _edge_module().CountRequest(exact=exact, filter=converted(count_filter))
        return SimpleNamespace(count=self.shards[collection_name].count(request))

    def facet(
        self, collection_name: str, key: str, facet_filter: Any, limit: int, exact: bool
    ) -> Any:
        request = _edge_module().FacetRequest(key, limit, exact, converted(facet_filter))
        return SimpleNamespace(hits=list(self.shards[collection_name].facet(request).hits))

    def query_batch_points(self, collection_name: str, requests: Any) -> Any:
        edge = _edge_module()
        batch = edge.QueryBatchRequest([_request(each) for each in requests])
        found = self.shards[collection_name].query_batch(batch)
        return [SimpleNamespace(points=points) for points in found]

    def _update(self, collection_name: str, operation: Any) -> None:
        self.shards[collection_name].update(operation)


def _request(request: Any) -> Any:
    edge = _edge_module()
    prefetch = request.prefetch
    return edge.QueryRequest(
        limit=request.limit,
        query=edge.Query.Nearest(request.query, using=request.using),
        filter=converted(request.filter),
        params=edge.SearchParams(exact=request.params.exact),
        with_payload=request.with_payload,
        with_vector=request.with_vector,
        prefetches=[]
        if prefetch is None
        else [
            edge.Prefetch(
                limit=prefetch.limit,
                query=edge.Query.Nearest(prefetch.query, using=prefetch.using),
                filter=converted(prefetch.filter),
                params=edge.SearchParams(hnsw_ef=prefetch.params.hnsw_ef),
            )
        ],
    )


def converted(condition: Any) -> Any:
    """A condition of qdrant_client as one of qdrant_edge."""
    from qdrant_client import models

    edge = _edge_module()
    match condition:
        case None:
            return None
        case models.Filter():
            parts = (condition.must, condition.should, condition.must_not)
            return edge.Filter(*[None if p is None else [converted(c) for c in p] for p in parts])
        case models.HasIdCondition():
            return edge.HasIdCondition({_id(each) for each in condition.has_id})
        case models.IsEmptyCondition():
            return edge.IsEmptyCondition(condition.is_empty.key)
        case models.FieldCondition(match=models.MatchAny(any=values)):
            return edge.FieldCondition(condition.key, match=edge.MatchAny(list(values)))
        case models.FieldCondition(range=models.DatetimeRange() as bounds):
            texts = {
                name: value.isoformat().replace("+00:00", "Z")
                for name, value in bounds
                if value is not None
            }
            return edge.FieldCondition(condition.key, range=edge.RangeDateTime(**texts))
        case models.FieldCondition(range=models.Range() as bounds):
            return edge.FieldCondition(condition.key, range=edge.RangeFloat(**dict(bounds)))
    raise AssertionError(f"the backend does not use {condition!r}")


def _id(value: Any) -> Any:
    return UUID(value) if isinstance(value, str) else value
