"""`polar rebuild`: trajectories made again from the log, by any builder, into a topic of their own."""
