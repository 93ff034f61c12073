"""Typed expressions with Spark's semantics: types, the tree, the closed table of functions,
evaluation over Arrow."""
