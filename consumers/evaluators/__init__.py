"""Evaluators: judges of what a run left behind. One module each; `base` says what the evaluate worker asks of them."""
