"""Many proxies: which one owns a session, and how a request finds it."""
