"""What a PySpark user touches: attaching, writing, running queries, and the data sources.

Spark's own readers and writers meet the log in `datasource` (format "penstock"); `nexmark_source`
is the generator as a format.
"""
