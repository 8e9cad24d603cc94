"""Groups in the forms that other trainers take: one module a trainer, of pure functions; none imports its trainer.

Each names the upstream type and the commit that it follows, and keeps the invariants that this trainer states, which the tests check.
What holds for all: sessions without a reward are left out (TRL, which needs every slot, gets their reward as None), a trained token is
trained once, its logprob is the engine's, and a trace without a trained token gives no row.
"""
