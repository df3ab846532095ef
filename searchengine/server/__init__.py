"""HTTP API over open collections: search, documents, embeddings, metrics.

running           sockets, worker processes, signals
app               the ASGI application: routes, start, stop, OpenAPI
guard             what every request passes: id, token, limits, time, log line
mcp_server        a collection as tools of an assistant, over stdio
…_routes          what answers at each address
refusals          exceptions as one sentence
served            what the routes share; one collection: its engine, threads, refresh
counting          numbers of all worker processes: limits, metrics
models            requests and responses
server_settings   what a server is started with, tokens, limits of a request
"""
