"""Accepted sessions as a dataset for supervised training: what is accepted, as which rows, in which split, in which format."""
