"""Sandboxes that sessions run in. `base` is the interface of every runtime; `process` needs nothing installed.

This file imports nothing: each supervisor process imports the package at its start and would pay for it.
"""
