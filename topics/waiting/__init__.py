"""How a process waits: for the first of several ends, and between two tries."""
