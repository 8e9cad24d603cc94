"""Stands in for PyTorch in SkyRL's server, whose JAX backend imports it and uses it for images alone."""
