"""The logical plan of a query, the visible tuple of rules that rewrite it, and its explanation."""
