"""The token tree of a session: its calls, each token once, with the reason for every branch and mask. Pure functions."""
