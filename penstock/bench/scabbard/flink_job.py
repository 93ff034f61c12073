"""Run by the python of an environment with Flink: SQL from standard input, seconds to its output.

It knows nothing of Penstock, which need not be there.
"""

import json
import sys
import time

from pyflink.table import (  # type: ignore[import-not-found]
    EnvironmentSettings,
    TableEnvironment,
)


def main() -> None:
    given = json.load(sys.stdin)
    for job in given["jobs"]:
        tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        for key, value in given["settings"].items():
            tables.get_config().set(key, value)
        for statement in job["tables"]:
            tables.execute_sql(statement)
        start_s = time.perf_counter()
        tables.execute_sql(job["insert"]).wait()
        print(json.dumps({"seconds": time.perf_counter() - start_s}), flush=True)


if __name__ == "__main__":
    main()
