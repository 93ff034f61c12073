"""Keep Spark's classes as a Java process has them in memory, so that the next ones start sooner.

`python tools/spark_classes.py FILE` runs a little of all that tests ask of Spark, and has Java
write its class data into the file as it ends, on top of Java's own in `FILE.base`, because not
every Java comes with them. Half of what a short Spark program costs is to find, check and link
classes. A Java that cannot do it leaves an empty file: nobody uses that one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

PATIENCE_S = 120.0


def main() -> None:
    (target,) = map(Path, sys.argv[1:])
    java, base = Path(os.environ["JAVA_HOME"], "bin", "java"), Path(f"{target}.base")
    own = [java, "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={base}"]
    subprocess.run(own, capture_output=True, check=False)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "classes"
        os.environ["SPARK_SUBMIT_OPTS"] = (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable "
            f"-XX:SharedArchiveFile={base} -XX:ArchiveClassesAtExit={made}"
        )
        run_a_little_of_all(Path(folder))
        if not made.exists():
            made.touch()
        made.replace(target)


def run_a_little_of_all(folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    rows = spark.range(100).withColumn("at", F.timestamp_seconds("id"))
    rows.write.parquet(str(folder / "rows"))
    read = spark.readStream.schema("id bigint, at timestamp").parquet(str(folder / "rows"))
    timed = read.withWatermark("at", "1 second").groupBy(F.window("at", "10 seconds")).count()
    writer = timed.writeStream.foreachBatch(lambda batch, _: batch.toArrow())
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    rows.groupBy((F.col("id") % 7).alias("k")).agg(F.sum("id")).orderBy("k").toArrow()
    spark.sparkContext.parallelize([0], 1).mapPartitions(list).collect()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which ends it
    gateway.proc.wait(PATIENCE_S)


if __name__ == "__main__":
    main()
