"""The builder process: from `Open` and `Build` on the log to one trajectory for each session."""
