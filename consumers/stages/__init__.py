"""The stage worker: init, run and evaluate, from a ticket to the fact that reports the result."""
