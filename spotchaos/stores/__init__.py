"""Where checkpoints live: a folder, or a bucket named by its URL."""
