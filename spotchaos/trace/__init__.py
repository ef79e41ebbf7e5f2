"""What a run left behind: its format, its reading, and look-up by content."""
