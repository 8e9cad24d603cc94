"""Scores finished traces again at the engines that sampled them, and compares: the work of `polar verify`."""
