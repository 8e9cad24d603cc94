"""Several proxies: which of them owns a session, and how a request reaches it."""
