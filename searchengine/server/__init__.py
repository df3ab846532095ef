"""HTTP API over open collections.

app                the ASGI application, and the processes that run it
server_settings    what a server is started with, limits of a request
guard, auth        what every request passes: id, token, limits, time, log line
served             a collection: its engine, threads, refresh; its questions are joined
…_routes, models   what answers at each address, and what it takes
responses          JSON up to a size; exceptions as one sentence
mcp_server         a collection as tools of an assistant, over stdio
"""
