"""The program that a slot runs: stages, vertices, tags and settings, complete and versioned."""
