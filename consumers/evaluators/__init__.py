"""Evaluators: they give a session its reward. One module each; `base` is their interface."""
