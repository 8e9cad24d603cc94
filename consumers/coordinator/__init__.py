"""The coordinator: folds the facts of its partitions and decides what follows.

`state` is the table, `decide` the pure transitions, `lend` the pure sharing of slots, `leases` who lives, `loop` the I/O around them.
"""
