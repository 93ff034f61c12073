"""What programs are tested and measured with, with no Spark: plans in a few words, one process.

Fakes are among it: a clock, a disk, a log and checkpoints that do as they are told. Each passes the
contract tests of the real thing.
"""
