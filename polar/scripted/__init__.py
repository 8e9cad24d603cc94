"""The scripted engine: a stand-in for vLLM in the demo and the tests. It answers from scripts and contains no model.

It serves vLLM's HTTP API with token ids and logprobs, uses a real tokenizer and chat template, records every sampled token, and injects
faults on request. `README.md` beside this file describes the format of scripts.

`python -m polar.scripted` serves it; in a program, use `polar.scripted.app.running(polar.scripted.engine.Engine(...))`. A request passes
through `request` (validation), `template` (prompt ids), `sampler` (an answer from `scripts`, or filler), `answer` (parsing of ids),
`response` (wire format) and `record`. `app` is HTTP, `faults` the injected faults.
"""
