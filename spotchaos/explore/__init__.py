"""Every state that a crash could leave on disk, each one resumed from and judged.

Gives `explore`: cuts a recorded run, builds crash states, groups them into classes and
finds the operation at fault. May import campaign and what lies below it.
"""
