"""Where a run can be interrupted, and which of that is drawn.

Gives the edges of a run, the moments between its file operations, and plans drawn from
a seed: pure functions of what a baseline showed. May import config, oracles, persistence.
"""
