"""Latency models behind one protocol: how long each phase of a round takes.

- `terms`: one cost as a function of (sequences, query tokens, context tokens): constant, linear, table, sum
- `models`: the phases of a round from such terms (`components`) or from the paper's ratios (`ratios`)
"""
