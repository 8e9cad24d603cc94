"""Polar: token-faithful rollouts of real coding agents, on a durable log."""
