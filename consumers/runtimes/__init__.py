"""Sandboxes that sessions run in. `base` says what every runtime does; `process` is the one that needs nothing installed.

This file stays empty of imports: each supervisor process imports the package at its start, and pays for what stands here.
"""
