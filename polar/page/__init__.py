"""The live page: static files, and a read API over the log and the lake (`polar page`; docs/page.md).

`service.py` runs it, `api.py` has the routes, and `openapi.py` describes them. `following.py` follows Kafka only while somebody looks.
The static files need no build; text of agents reaches a browser only as JSON.
"""
