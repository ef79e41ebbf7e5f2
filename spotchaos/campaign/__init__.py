"""A campaign: baseline, control, trials, their judgement; announced as events.

Gives `run`, the cache of baselines, and the rules by which trials are scheduled, skipped
and confirmed. May import recording, trial, oracles and what lies below them.
"""
