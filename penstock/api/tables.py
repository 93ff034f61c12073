"""Taking a stream as a table, whatever was computed of it before."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from penstock.arguments import check_type
from penstock.catalyst.tables import table_mark
from penstock.errors import InvalidArgument


def as_table(df: Any, keys: str | Sequence[str], delete_flag: str | None = None) -> Any:
    """A streaming DataFrame as a table: a row replaces the earlier one of its key.

    A row whose `delete_flag` is true takes its key away; without a flag, one whose columns beside
    the keys are all null does. It is what the option `table` is for a stream as it is read.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 (Spark is loaded where it is used)
    from pyspark.sql import functions as F  # noqa: PLC0415

    check_type(df, DataFrame, "df", "a DataFrame")
    names = (
        [keys] if isinstance(keys, str) else list(keys) if isinstance(keys, list | tuple) else []
    )
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(
            f"keys is {keys!r:.80}, and should be the name of a column, or several", argument="keys"
        )
    check_type(delete_flag, (str, type(None)), "delete_flag", "the name of a column")
    # Spark's plan keeps what is observed, with all columns that it is of, and changes no row.
    mark = table_mark(names, delete_flag, uuid.uuid4().hex)
    return df.observe(mark, F.any_value(F.struct("*")).alias("row"))
