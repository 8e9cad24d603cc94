"""The scripted engine: a stand-in for vLLM in the demo and the tests. It plays scripts; there is no model in it.

It speaks vLLM's chat wire format with token ids and logprobs over a real tokenizer and chat template, keeps a record of
all that it sampled, and has faults on demand. `README.md` beside this file tells how scripts are written.

`python -m polar.scripted` serves it; in a program, `polar.scripted.app.running(Engine(...))` does, with
`polar.scripted.engine.Engine`. From request to answer: `request` checks, `template` makes prompt ids, `sampler` takes the
answer from `scripts` or makes filler, `answer` parses the ids, `response` puts them on the wire, `record` keeps them,
`app` is HTTP, and `faults` is what can go wrong.
"""
