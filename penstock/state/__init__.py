"""State that belongs to the runtime: keyed rows, their changes, snapshots and checkpoints."""
