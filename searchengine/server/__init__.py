"""HTTP API over open collections: search, documents, embeddings, metrics.

running           sockets, worker processes
app               the ASGI application: routes, start, stop
guard             what every request passes: id, token, limits, time, log line
auth              tokens, and what they allow
server_settings   what a server is started with, limits of a request
…_routes          what answers at each address
served            what the routes share; one collection: its engine, threads, refresh
models            requests and responses
responses         JSON up to a size
refusals          exceptions as one sentence
metrics           numbers for Prometheus
mcp_server        a collection as tools of an assistant, over stdio
"""
