"""The programs that a run's curves are written to: a module each, imported only for its program."""
