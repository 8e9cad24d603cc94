"""The coordinator folds the facts of its partitions and decides what follows.

`state` is the table of one partition, `decide` its pure transitions. `scheduling` assigns free slots, `leases` knows which workers live.
`partition` and `coordinator` perform the I/O.
"""
