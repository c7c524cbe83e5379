"""Whether the library is right, by oracles that others wrote: torch's samples of its operators and
ONNX's tests of its nodes.

An adapter (`contract.py`, `adapters_*.py`, `nodes_*.py`) writes a call of theirs as a program of
ours. Everything else follows: `samples.py` and `nodes.py` make cases of it, with the results that
are right; `placements.py` says how arguments are laid out, `programs.py` writes the programs, and
`judge.py` runs each case by the reference evaluator and compiled on 1, 2 and 4 ranks.
`python -m benchmarks.coverage` prints the score of all.
"""
