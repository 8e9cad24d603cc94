"""Why a session or a task waits, or ended as it did: `reader` collects facts, and `table` has the causes that they are compared with."""
