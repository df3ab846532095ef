"""HTTP API over open collections: search, documents, embeddings, metrics.

app               the ASGI application, and the processes that run it
server_settings   what a server is started with, limits of a request
guard             what every request passes: id, token, limits, time, log line
auth              tokens, and what they allow
served            a collection: its engine, threads, refresh; coalescing joins its questions
…_routes          what answers at each address; projection: the map of the page
models, responses  requests, and JSON up to a size
refusals          exceptions as one sentence
mcp_server        a collection as tools of an assistant, over stdio
"""
