"""One module for each kind: UNITS, the size of each unit in the kind's first one."""
