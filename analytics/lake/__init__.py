"""The lake itself: its tables, what records become in them, its files, and the manifests that say which of them count."""
