"""A language model of a million weights that calls tools, made from nothing in minutes on a CPU; see README.md."""

import os

# Before torch is imported: threads that spin while they wait cost four times the processor's time where others want it, too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
