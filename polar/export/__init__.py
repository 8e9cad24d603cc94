"""Finished sessions as files for other programs: datasets for supervised training, and the formats of other systems."""
