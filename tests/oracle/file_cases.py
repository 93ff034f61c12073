"""Files that are read in two ways: by Spark's batch reader, whose answers are stored, and here.

`python -m tests.oracle.file_cases` asks Spark and stores its answers in `file_answers.json`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracle.verdict import plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ANSWERS = Path(__file__).with_name("file_answers.json")
MALFORMED = "malformed"


@dataclass(frozen=True)
class Group:
    """Files of one format, schema and set of options.

    `refused` are those that Spark makes rows of and that are refused here, for the reason given.
    """

    format: str
    schema: str
    same: list[bytes]
    refused: dict[str, list[bytes]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        return f"{self.format}: {self.schema}{options}"

    @property
    def contents(self) -> list[bytes]:
        return [*self.same, *(content for some in self.refused.values() for content in some)]


def lines(*texts: str | bytes) -> list[bytes]:
    return [(text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts]


def words(text: str) -> list[bytes]:
    """Lines of one word each."""
    return lines(*text.split())


def fields(name: str, *values: str) -> list[bytes]:
    """JSON lines, one for each value of a field."""
    return lines(*(f'{{"{name}":{value}}}' for value in values))


def parquet(*tables: Any, **settings: Any) -> list[bytes]:
    """Parquet files of one column `a`, or of the tables given."""
    files = []
    for table in tables:
        sink = io.BytesIO()
        whole = table if isinstance(table, pa.Table) else pa.table({"a": table})
        pq.write_table(whole, sink, **settings)
        files.append(sink.getvalue())
    return files


CSV = [
    Group(
        "csv",
        "a string, b string",
        [
            *lines('x,"a\\"b"', 'x,a"b', 'x,"a\\\\b"', 'x,"a\\\\"', " x , y ", '"x" ,y', 'x,"a,b"'),
            *lines('"",x', ",", "a,b\r", "a\tb,c", 'x,"a\\nb"', 'x,\\"', '"a\\",b",c', "# c,d"),
            *lines("null,NULL", "\ufeffa,b", "a,b\n\n\nc,d", "   \na,b", "\t\na,b", "a,b,", "a"),
            *lines("a,b,c", "'a,b',c", b"\0,b", "a,b\x0bc", "é,\u2028", "a,b\rc,d", "a,b\r\rc,d"),
            *lines('C:\\\\x,"C:\\\\x"', ' "x",y', '"x"\t ,y', "\\,b", '\\"a,b', '"a\\,b",c'),
            *lines('"a,b', '"a\\xb","\\""', "a,b\r\n\r\nc,d\r", '"a ",b', '""  ,x'),
            b"a,b",
            b"a,b\r",
            b"",
            b"\r",
        ],
        {
            "a quote that neither is escaped nor ends the value": lines(
                'x,"a""b"', '"x"y,z', '"a"b",c', '"x" y,z'
            ),
            "a value that is not closed on its line": lines('x,"a', 'x,"a\\"'),
            "not UTF-8": lines(b"\xff,b", b"a,\xed\xa0\x80"),
        },
    ),
    Group(
        "csv",
        "a string, b string",
        lines('x,"a""b"', '"""",x', '"a""",b', '"a"" ""b",c', 'x,"a\\b"', '"a\\""b",c'),
        {"as above": lines('"x"y,z')},
        {"escape": '"'},
    ),
    Group("csv", "a string, b decimal(9,2)", lines("a;1,000.5", '"b;c";2'), {}, {"sep": ";"}),
    Group(
        "csv",
        "a int",
        words("1 +5 0x1F 1_000 1e3 1.0 007 -0 2147483647 2147483648 -2147483648")
        + lines(
            "-2147483649", "--1", "-", "+", " 5", "5 ", "\u00a05", "5L", "99999999999999999999"
        ),
        {"digits of another script": lines("\u0661")},
    ),
    Group("csv", "a tinyint", lines("127", "128", "-128", "-129", "+0")),
    Group("csv", "a smallint", lines("32767", "32768", "-32768")),
    Group(
        "csv",
        "a bigint",
        lines("9223372036854775807", "9223372036854775808", "-9223372036854775808", "0x10", "5L")
        + lines("-9223372036854775809", "00000000000000000000000001"),
    ),
    Group(
        "csv",
        "a double",
        words("NaN nan +NaN -NaN Inf -Inf +Inf inf Infinity -Infinity 1e400 1e-400 1d 1f 1D")
        + words(".5 5. . -.5e-3 1e 1e+ +1.5 --1 1,5 -0.0 4.9e-324 1.7976931348623159e308")
        + lines(" 1.5", "1.5 ", " NaN", " Inf", "1 5", "1dd", "9007199254740993", "1e5d", "e5"),
        {"a hexadecimal number": lines("0x1p3")},
    ),
    Group(
        "csv",
        "a float",
        words("0.1 16777217 3.5e38 1.00000017881393432617187499 NaN 1f -Inf 1e-50"),
    ),
    Group(
        "csv",
        "a boolean",
        words("true TRUE tRuE False false 1 0 t yes truee") + lines(" true", "true "),
    ),
    Group(
        "csv",
        "a decimal(5,2)",
        words("1.005 1.004999 -1.005 123.45 1234.5 1e2 1e3 1E-2 -0.00 1.2 999.994 999.995")
        + words("0x1 +1.2 1. .5 . 1e 0.001 0.005 -0.005 00000001 1e-999 0e99 0.0049999 5e-3")
        + lines(" 1.2", "1.2 ", "NaN", "1e99", "1e-2147483648"),
    ),
    Group("csv", "a decimal(3,3)", lines("0.5", ".9994", ".9995", "1", "0", "-0.0005")),
    Group("csv", "a decimal(4,0)", lines("1.5", "0.5", "-0.5", "9999.4", "9999.5", "1e3")),
    Group(
        "csv",
        "a decimal(38,18)",
        lines("12345678901234567890.123456789012345678", "99999999999999999999.9999999999999999994")
        + lines("99999999999999999999.9999999999999999995", "100000000000000000000"),
    ),
    Group(
        "csv",
        "a date",
        words("2020-02-29 2020-02-30 2021-02-29 1900-02-29 2000-02-29 2020-2-3 2020-02-03T10:00")
        + words("20200203 0001-01-01 9999-12-31 10000-01-01 2020/02/03 -0001-01-01 0000-01-01")
        + words("1582-10-10 2020-02 2020 2020-13-01 2020-00-01 2020-01-00 202-01-01 2020-01-001")
        + lines(
            "2020-02-03 x", " 2020-02-03", "2020-02-03\t", "+2020-01-01", "2020-01-01Tx", "2020-"
        )
        + lines("2020-02T", "5000000-01-01", "99999999-01-01", "2020-01-01-", "epoch", "now"),
    ),
    Group(
        "csv",
        "a timestamp",
        lines("2020-02-03 10:11:12", "2020-02-03T10:11:12.123456789Z", "2020-02-03T10:11:12+01:00")
        + lines("2020-02-03 10:11:12.5", "2020-02-03", "2020-02-03 10:11", "2020-02-03T10", "2020")
        + lines("1600000000", "0001-01-01 00:00:00", "1900-01-01 00:00:00", "2020-02-03 24:00:00")
        + lines("2020-02-03 10:11:60", "2020-02-03 10:60:00", "2020-02-03T10:11:12+0100", "2020-02")
        + lines("2020-02-03 10:11:12 UTC", "2020-02-03 10:11:12-05", "9999-12-31 23:59:59.999999")
        + lines(
            "2020-02-03 10:11:12,5", "2020-2-3 1:2:3", "2020-02-03 10:11:12.", "x", "2020-02-03T"
        )
        + lines(
            "2020-02-03 10:11:12.Z", "2020-02-03 10:11Z", "2020-02-03 10:11:12+19:00", "+2020-01-01"
        )
        + lines("2020-02-03 10:11:12+18:00", "2020-02-03 10:11:12+18:01", "2020-02-03 10:11:12 z")
        + lines("2020-02-03 10:11:12+1:30", "2020-02-03 10:11:12+5", "2020-02-03 10:11:12GMT")
        + lines("-0001-01-01 00:00:00", "290000-01-01 00:00:00", "300000-01-01 00:00:00")
        + lines("2020-02-03 10:11:12.1234567", " 2020-02-03 10:11:12 ", "2020-02-03  10:11:12")
        + lines("2020-02-03 10:11:12+01:60", "2020-02-03 10:11:12+", "2020-01-01T001:00:00"),
        {
            "a zone by its name": lines(
                "2020-02-03T10:11:12 Europe/Paris", "2020-02-03 10:11:12 UT"
            ),
            "seconds of a zone": lines("2020-02-03 10:11:12+01:02:03"),
            "minutes of one digit": lines("2020-02-03 10:11:12+01:5"),
        },
    ),
    Group(
        "csv",
        "a timestamp_ntz",
        lines(
            "2020-02-03 10:11:12",
            "2020-02-03T10:11:12Z",
            "2020-02-03",
            "2020-02-03 10:11:12.5+01:00",
        ),
    ),
    Group(
        "csv",
        "a string, b string",
        lines("b,a\n1,2", "A,B\n1,2", "a,b,c\n1,2", "a,b,c\n1,2,3", "a\n1,2", "a,b\n1", " a,b\n1,2")
        + lines(
            '"a",b\n1,2', "x,y\n1,2", "", "\n", "\na,b\n1,2", "  \n\t\na,b\n\n1,2", "a,b\r1,2\r3,4"
        )
        + lines('"a\n1,2', "\ufeffa,b\n1,2")
        + [b"", b"a,b", b"\r\n\r\na,b\r\n1,2"],
        {},
        {"header": "true"},
    ),
]

JSON = [
    Group(
        "json",
        "a int",
        fields("a", "1", "1.0", "1.5", "1e2", '"5"', "2147483648", "true", "null", "01", "+1", "-0")
        + fields(
            "a", "[1]", "0x1", "\t1", "-2147483648", "1,", '"1', "{}", "[]", "1 ", "--1", "1_0"
        )
        + lines("{}", '{"A":1}', "{a:1}", '// c\n{"a":1}', "\n\n", '  {"a":1}  ', '{"\\u0061":7}')
        + lines('{"b":{"c":[1,{"d":2}]},"a":1}', '{"a":1,"b":NaN}', '{"a":1}\r\n{"a":2}\r')
        + lines('\ufeff{"a":1}', '{"a":1}\r{"a":2}', '{"a"\r:1}', '{"a":1', "1", '"x"', "{", "}")
        + lines(b'{"a":1,"b":"\xff"}', '{"a":1,"b":"\x01"}', '{"a":1,"b":"\\x"}'),
        {
            "a name twice": lines('{"a":1,"a":2}'),
            "more than an object": lines('{"a":1}{"a":2}', '{"a":1} x', '{"a":1}\x0b'),
            "quotes of another kind": lines("{'a':1}"),
            "an array of objects": lines('[{"a":1},{"a":2}]'),
            "half a character": lines('{"a":1,"b":"\\ud800"}'),
        },
    ),
    Group(
        "json",
        "a string",
        fields("a", '"\\u0000"', '"\\ud83d\\ude00"', '"x\ty"', '""', '"\\/"', '"\\q"', '"é"')
        + fields("a", '"a\\nb"', "null", '"\\"'),
        {
            "another type": fields("a", "5", "5.50", "true", '{"x":1}', "[1, 2]"),
            "half a character": fields("a", '"\\ud83d"'),
            "a name twice": lines('{"a":"x","a":"y"}', '{"a":"x","a":null}'),
        },
    ),
    Group(
        "json",
        "a double",
        fields("a", "1", "NaN", '"1.5"', "Infinity", "1e-400", "9007199254740993", "0.1", "-0.0")
        + fields(
            "a", "4.9e-324", "1.7976931348623157e308", "1" * 30, "1.", ".5", "1e", "1e5", "nan"
        ),
        {
            "no number of JSON": fields("a", '"NaN"', '"Infinity"'),
            "too large": fields("a", "1e400"),
        },
    ),
    Group(
        "json", "a bigint", fields("a", "9223372036854775807", "9223372036854775808", "1e18", "1.0")
    ),
    Group("json", "a float", fields("a", "0.1", "16777217", "1e-60")),
    Group("json", "a boolean", fields("a", "1", '"true"', "true", "false", "True")),
    Group(
        "json",
        "a decimal(5,2)",
        fields("a", "1.5", "1000", "1", "-0.0", "999.99", "12345", "1e9", '"x"', "1e2"),
        {"more digits than there is room for": fields("a", "1.005")},
    ),
    Group(
        "json", "a decimal(38,18)", fields("a", "12345678901234567890.123456789012345678", "0.1")
    ),
    Group(
        "json",
        "a date",
        fields("a", '"2020-02-03"', '"2020-2-3"', '"2020-02-03T10:00:00Z"', '"0001-01-01"', '"x"')
        + fields("a", '"2020-02-30"', "18295"),
    ),
    Group(
        "json",
        "a timestamp",
        fields(
            "a", '"2020-02-03 10:11:12"', '"2020-02-03T10:11:12Z"', '"1600000000"', '"2020-02-03"'
        )
        + fields("a", '"2020-02-03T10:11:12.123456789Z"', '"2020-02-03T10:11:12.5+01:00"', "1.5")
        + fields(
            "a", '"0001-01-01T00:00:00Z"', '"2020-02-03T10:11"', '"1582-10-10T00:00:00Z"', '""'
        ),
        {"a number": fields("a", "1600000000")},
    ),
    Group(
        "json",
        "a timestamp_ntz",
        fields(
            "a", '"2020-02-03 10:11:12"', '"2020-02-03T10:11:12Z"', '"2020-02-03T10:11:12+05:00"'
        )
        + fields("a", '"2020-02-03"', "5"),
    ),
    Group("json", "a array<int>", fields("a", "[1,null]", "[]", "[1.5]", "null", '["1"]')),
    Group("json", "a array<date>", fields("a", '["2020-01-01",null]', "[]", '["x"]', "null")),
    Group(
        "json",
        "a struct<x:int,y:string>",
        fields("a", '{"x":1}', '{"y":"q","z":3}', '{"X":1}', "{}", '"{}"', '[1,"x"]', "null"),
    ),
    Group(
        "json",
        "a struct<d:date,l:array<binary>>",
        fields("a", '{"d":"2020-01-01","l":["YWJj",null]}', '{"d":"x"}', "null", '{"l":["YQ="]}'),
    ),
    Group(
        "json",
        "a binary",
        fields("a", '"YWJj"', '"/w=="', '"YWI="', '""', '"Y"', '"Y*Jj"', "null", "5", '"YWJjZA=="'),
    ),
    Group("json", "a int, b string", lines('{"b":"x"}\n{"a":3}', '{"a":1,"b":"x","c":1}')),
]

TEXT = [
    Group(
        "text",
        "value string",
        [
            b"a\rb\n",
            b"a\r\nb",
            b"\n\n",
            b"x",
            b"",
            b"\r",
            b"a\r\r\nb",
            b"\xef\xbb\xbfa\n",
            b" \t\n",
        ],
    )
]

_int32, _int64 = pa.int32(), pa.int64()
PARQUET = [
    Group(
        "parquet",
        "a bigint",
        [
            *parquet(
                pa.table({"A": [1, 2]}), pa.array([1, 2], _int32), pa.array([200], pa.uint8())
            ),
            *parquet(pa.table({"b": [1]}), pa.array([1.5]), pa.array(["1"]), pa.array([True])),
            *parquet(pa.array([2**64 - 1], pa.uint64()), pa.array([Decimal("1.5")])),
            *parquet(pa.table([[1], [2]], names=["a", "A"])),
            *parquet(pa.array([5, 2**32 - 1], pa.uint32()), pa.array([5], pa.int8())),
        ],
    ),
    Group(
        "parquet",
        "a int",
        [
            *parquet(pa.array([1]), pa.array([1.0]), pa.array([5], pa.int8())),
            *parquet(pa.array([3_000_000_000], pa.uint32()), pa.array([60_000], pa.uint16())),
        ],
    ),
    Group(
        "parquet",
        "a double",
        [
            *parquet(pa.array([1], _int32), pa.array([2**53 + 1]), pa.array([Decimal("1.10")])),
            *parquet(pa.array([0.1], pa.float32()), pa.array([1.5], pa.float16())),
        ],
    ),
    Group("parquet", "a float", parquet(pa.array([0.1]), pa.array([0.1], pa.float32()))),
    Group(
        "parquet",
        "a decimal(10,2)",
        [
            *parquet(pa.array([Decimal("1.5")], pa.decimal128(10, 1))),
            *parquet(pa.array([Decimal("1.5")], pa.decimal128(9, 1))),
            *parquet(pa.array([Decimal("1.55")], pa.decimal128(8, 2))),
            *parquet(pa.array([Decimal("1.555")], pa.decimal128(10, 3))),
            *parquet(
                pa.array([Decimal("1.55")], pa.decimal128(9, 2)), store_decimal_as_integer=True
            ),
            *parquet(pa.array([1], _int32), pa.array([1.5])),
        ],
    ),
    Group(
        "parquet",
        "a timestamp",
        [
            *parquet(
                *(pa.array([datetime(2020, 2, 3, 4)], pa.timestamp(unit)) for unit in ("ms", "us"))
            ),
            *parquet(pa.array([datetime(2020, 2, 3)], pa.timestamp("us", "Europe/Berlin"))),
            *parquet(pa.array([datetime(2020, 2, 3, 4)], pa.timestamp("ms", "UTC"))),
            *parquet(pa.array([1_580_702_400_123_456_000], pa.timestamp("ns", "UTC"))),
            *parquet(pa.array([1_580_702_400]), pa.array([date(2020, 1, 1)])),
            *parquet(pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC"))),
            *parquet(
                pa.array([datetime(2020, 2, 3), datetime(1500, 1, 1)], pa.timestamp("us")),
                use_deprecated_int96_timestamps=True,
            ),
        ],
    ),
    Group(
        "parquet",
        "a timestamp_ntz",
        [
            *parquet(pa.array([datetime(2020, 2, 3, 4)], pa.timestamp("us", "UTC"))),
            *parquet(pa.array([datetime(2020, 2, 3, 4)], pa.timestamp("ms"))),
            *parquet(pa.array([date(2020, 1, 1)])),
        ],
    ),
    Group(
        "parquet",
        "a date",
        parquet(
            pa.array([datetime(2020, 2, 3)], pa.timestamp("us")),
            pa.array([18_000 * 86_400_000], pa.date64()),
            pa.array([18_000], pa.date32()),
        ),
        {"a plain number": parquet(pa.array([18_000], _int32))},
    ),
    Group(
        "parquet",
        "a string",
        parquet(
            pa.array(["x", "x"]).dictionary_encode(),
            pa.array([1]),
            pa.array(["x"], pa.large_string()),
            pa.array([b"abc", None]),
        ),
    ),
    Group(
        "parquet",
        "a binary",
        parquet(pa.array(["abc"]), pa.array([b"abcd"], pa.binary(4)), pa.array([1])),
    ),
    Group(
        "parquet",
        "a struct<x:bigint,y:string>",
        parquet(
            pa.array([{"x": 1, "y": "q"}, None]),
            pa.array([{"y": "q", "x": 1}, {"y": None, "x": None}]),
            pa.array([{"X": 1, "y": "q"}]),
            pa.array([{"x": 1}, None]),
            pa.array([{"x": 1, "y": "q", "z": 2}]),
            pa.array([{"x": 1, "y": "q"}], pa.struct([("x", _int32), ("y", pa.string())])),
            pa.array([{"x": 1.5, "y": "q"}]),
        ),
        {"a struct with none of the fields": parquet(pa.array([{"z": 1}, None]))},
    ),
    Group(
        "parquet",
        "a array<int>",
        parquet(
            pa.array([[1, None], [], None], pa.list_(_int32)),
            pa.array([[1]], pa.list_(_int64)),
            pa.array([[1]], pa.large_list(_int32)),
        ),
    ),
    Group(
        "parquet",
        "a map<string,int>",
        parquet(pa.array([[("k", 1)], None], pa.map_(pa.string(), _int32))),
    ),
    Group(
        "parquet",
        "`a.b` int, `ü` int, c struct<d:int>",
        parquet(
            pa.table({"c": [{"D": 1}], "Ü": [2], "a.b": [3]}).cast(
                pa.schema({"c": pa.struct({"D": _int32}), "Ü": _int32, "a.b": _int32})
            )
        ),
    ),
    Group(
        "parquet",
        "a int, A2 int, b string",
        parquet(pa.table({"a2": pa.array([2], _int32), "a": pa.array([1], _int32)})),
    ),
]

GROUPS = [*CSV, *JSON, *TEXT, *PARQUET]
EXTENSIONS = {"csv": "csv", "json": "json", "text": "txt", "parquet": "parquet"}


def answers() -> dict[str, list[str]]:
    """Spark's stored answer to every file of every group."""
    stored: dict[str, list[str]] = json.loads(ANSWERS.read_text())
    return stored


def file_name(group: Group, number: int) -> str:
    return f"{number:03d}.{EXTENSIONS[group.format]}"


def shown(rows: list[tuple[Any, ...]]) -> str:
    return repr(rows)


def spark_answers(spark: SparkSession, group: Group) -> Iterator[str]:
    """What Spark makes of each file, in its own process and without the others."""
    with TemporaryDirectory() as folder:
        for number, content in enumerate(group.contents):
            Path(folder, file_name(group, number)).write_bytes(content)
        if group.format == "parquet":
            yield from _one_by_one(spark, group, folder)
        else:
            yield from _together(spark, group, folder)


def _together(spark: SparkSession, group: Group, folder: str) -> Iterator[str]:
    """Lines that Spark cannot read are told from others by a column of their own."""
    has_corrupt = group.format != "text"
    schema = group.schema + (", _corrupt_record string" if has_corrupt else "")
    reader = spark.read.schema(schema).format(group.format).options(**group.options)
    frame: DataFrame = reader.load(folder).select("*", "_metadata.file_name")
    found = frame.toArrow()
    names = found.column("file_name").to_pylist()
    whole = [True] * len(names)
    if has_corrupt:
        whole = found.column("_corrupt_record").is_null().to_pylist()
    columns = [name for name in found.column_names if name not in ("file_name", "_corrupt_record")]
    rows = plain(found.select(columns))
    for number in range(len(group.contents)):
        mine = [at for at, name in enumerate(names) if name == file_name(group, number)]
        fits = all(whole[at] for at in mine)
        yield shown([rows[at] for at in mine]) if fits else MALFORMED


def _one_by_one(spark: SparkSession, group: Group, folder: str) -> Iterator[str]:
    from py4j.protocol import Py4JError  # noqa: PLC0415 (only where Spark is wanted)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    for number in range(len(group.contents)):
        path = str(Path(folder, file_name(group, number)))
        try:
            yield shown(plain(spark.read.schema(group.schema).parquet(path).toArrow()))
        except (Py4JError, PySparkException):
            yield MALFORMED


def main() -> None:
    from tests.spark_session import shared_session  # noqa: PLC0415

    spark = shared_session()
    spark.sparkContext.setLogLevel("OFF")
    stored = {}
    for number, group in enumerate(GROUPS):
        print(group.name, file=sys.stderr)
        stored[f"{number} {group.name}"] = list(spark_answers(spark, group))
    ANSWERS.write_text(json.dumps(stored, indent=0, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
