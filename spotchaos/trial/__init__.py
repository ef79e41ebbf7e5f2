"""One plan carried out: attempt after attempt, each injected with what the plan says.

Gives `run_trial` and the record of what happened; judges nothing. May import launch,
injectors, config and what lies below them.
"""
