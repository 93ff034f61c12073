"""Spark's plan of a streaming DataFrame, read into ours: relations, nodes, expressions, windows."""
