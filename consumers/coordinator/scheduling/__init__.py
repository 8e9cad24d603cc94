"""The scheduler: who gets the free slots of a pool."""
