"""HTTP API over open collections: search, documents, embeddings, metrics.

running             sockets, worker processes, signals
app                 the ASGI application: routes, start, stop, OpenAPI
guard               what every request passes: id, token, limits, time, log line
routes              what answers at each address
handlers, errors    exceptions as one sentence
state, served       what the routes share; one collection: its engine, threads, refresh
shared, metrics     numbers of all worker processes
models, settings, tokens
"""
