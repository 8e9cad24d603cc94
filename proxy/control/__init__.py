"""The control port: health, figures, and sessions for agents of one's own."""
