"""What a PySpark user touches: attaching, writing, running queries, and the data sources.

Spark's own readers and writers meet the log in `datasource` (format "penstock"); `nexmark_source`,
`ysb_source` and `replay_source` are the generators as formats.
"""
