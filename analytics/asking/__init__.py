"""SQL over the lake: the views, and a connection that can do nothing but ask."""
