"""Chains of operators over Arrow batches: stateless steps, windows and aggregates."""
