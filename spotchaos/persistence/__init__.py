"""What a crash can leave on disk, from one recorded run."""
