"""What a campaign is asked for: options, settings, plans, and how they are spelled.

Gives the frozen `Settings` and `Plan`, the table of options from which the command, files,
scenarios and the plugin derive, and replay tokens. May import errors, findings, trace.
"""
