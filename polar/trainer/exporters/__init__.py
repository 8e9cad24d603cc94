"""Convert groups into the formats of other trainers: one module of pure functions per trainer, none of which imports its trainer.

Each module names the trainer's type and version, and keeps the invariants that the trainer documents; the tests check them. In all formats,
sessions without a reward are left out (TRL needs every slot and gets their reward as None), each trained token is trained once with the
engine's logprob, and a trace without a trained token gives no row. What a trainer has no place for raises InputError: several traces of a
session, unless the caller chooses the longest, and calls with different rewards.
"""
