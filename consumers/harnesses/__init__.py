"""Harnesses: agent programs, black boxes that call a model over HTTP. One module each; `base` is their interface."""
