"""What a campaign found, in every form in which somebody wants to read it."""
