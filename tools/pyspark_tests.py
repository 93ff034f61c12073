"""Run apache/spark's own Python streaming tests, and its examples, with their queries on Penstock.

    python tools/pyspark_tests.py PATH_TO_A_CHECKOUT [--json FILE] [--only WORD] [--spark]
                                  [--beside FILE]

Nothing is copied: the tests are loaded from the checkout, beside the installed PySpark. Each test
has one of three outcomes: it passes with every query on Penstock, it passes with some query left to
Structured Streaming, or it fails. What does not pass on Penstock alone must be among EXPECTED, with
its reason; the exit code is 1 if an outcome is not the expected one. `--spark` runs the same tests
on Structured Streaming, to see what this machine can pass at all; `--beside` names the file of such
a run, and how many of its tests pass here is the last line. `--json` adds to what a file has, so a
run may be one of pieces.

The examples (`--only examples`) are programs of their own: `penstock run --takeover` runs them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark_examples import EXAMPLES, run_example

MODULES = (
    "sql.tests.streaming.test_streaming",
    "sql.tests.streaming.test_streaming_foreach",
    "sql.tests.streaming.test_streaming_foreach_batch",
    "sql.tests.streaming.test_streaming_listener",
    "sql.tests.test_observation",
    "sql.tests.pandas.test_pandas_grouped_map_with_state",
    "sql.tests.pandas.streaming.test_pandas_transform_with_state",
    "sql.tests.pandas.streaming.test_pandas_transform_with_state_checkpoint_v2",
    "sql.tests.pandas.streaming.test_pandas_transform_with_state_state_variable",
    "sql.tests.pandas.streaming.test_pandas_transform_with_state_state_variable_checkpoint_v2",
    "sql.tests.pandas.streaming.test_transform_with_state",
    "sql.tests.pandas.streaming.test_transform_with_state_checkpoint_v2",
    "sql.tests.pandas.streaming.test_transform_with_state_state_variable",
    "sql.tests.pandas.streaming.test_transform_with_state_state_variable_checkpoint_v2",
    "sql.tests.pandas.streaming.test_tws_tester",
)
PASSED, FELL_BACK, FAILED, SKIPPED = "passed", "fell back", "failed", "skipped"
_FEED = "it reads the change feed and snapshots of Spark's state store by batch: here is none"
_EMPTY = "it counts on batches without rows, which foreachBatch is not given here"
_PROTOBUF = "it is no stream but a batch job of Spark's, which needs protobuf, and there is none"
_LATE = "without batches that have no data, Spark knows rows to be late one batch later than here"
_CLOCK = "it has timers wait for the next batch: here they fire when their time has come"
# Of the modules of processors, by what they are about: test → why it fails.
_OF_PROCESSORS: dict[str, dict[str, str]] = {
    "": {
        "test_transform_with_state_chaining_ops": _EMPTY,
        "test_transform_with_state_event_time": _LATE,
        "test_transform_with_state_proc_timer": _CLOCK,
        "test_transform_with_state_with_timers_single_partition": _LATE,
    },
    "_state_variable": {
        "test_transform_with_value_state_metadata": _FEED,
    },
}
HAS_PROTOBUF = find_spec("google") is not None and find_spec("google.protobuf") is not None
if not HAS_PROTOBUF:
    _OF_PROCESSORS[""] |= {
        "test_transform_with_state_batch_query": _PROTOBUF,
        "test_transform_with_state_batch_query_initial_state": _PROTOBUF,
    }


def _of_processors() -> dict[str, tuple[str, str]]:
    """Each runs with frames and with rows, and with two forms of Spark's checkpoints."""
    return {
        f"sql.tests.pandas.streaming.test_{kind}{about}{version}.{name}{word}{tests}.{test}": (
            FAILED,
            why,
        )
        for about, found in _OF_PROCESSORS.items()
        for kind, name in (
            ("pandas_transform_with_state", "TransformWithStateInPandas"),
            ("transform_with_state", "TransformWithStateInPySpark"),
        )
        for version, tests in (("", "Tests"), ("_checkpoint_v2", "WithCheckpointV2Tests"))
        for word in ("StateVariable" if about else "",)
        for test, why in found.items()
    }


# Test → (outcome, why it does not pass on Penstock alone).
EXPECTED: dict[str, tuple[str, str]] = {
    "examples.structured_sessionization": (
        FAILED,
        "sessions in update mode: Structured Streaming refuses the example too",
    ),
    **_of_processors(),
}
if not HAS_PROTOBUF:
    EXPECTED |= {
        f"sql.tests.pandas.streaming.test_pandas_transform_with_state{module}."
        f"TransformWithStateInPandas{tests}.test_transform_with_state_int_to_decimal_coercion": (
            FAILED,
            _PROTOBUF,
        )
        for module, tests in (("", "Tests"), ("_checkpoint_v2", "WithCheckpointV2Tests"))
    }


class Outcomes(unittest.TextTestResult):
    """Notes, for each test, how it ended and which queries were left to Spark."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.taken: Any = None

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        if self.taken is not None:
            self.taken.starts.clear()

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        left = [] if self.taken is None else [s for s in self.taken.starts if s.reason is not None]
        self._note(test, FELL_BACK if left else PASSED, [str(each) for each in left])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, FAILED, [_last_line(err)])

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._note(test, FAILED, [_last_line(err)])

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, SKIPPED, [reason])

    def _note(self, test: unittest.TestCase, outcome: str, why: list[str]) -> None:
        starts = 0 if self.taken is None else len(self.taken.starts)
        facts = {"outcome": outcome, "queries": starts, "why": why}
        self.outcomes[test.id().removeprefix("pyspark.")] = facts


def _last_line(err: Any) -> str:
    return f"{err[0].__name__}: {err[1]}".strip().splitlines()[0][:300]


def load(checkout: Path, only: str | None) -> unittest.TestSuite:
    """The tests of a checkout, under the names that they have in PySpark."""
    import pyspark.sql  # noqa: PLC0415 (not before the program knows what to do)

    pyspark.sql.__path__.append(str(checkout / "python" / "pyspark" / "sql"))
    os.chdir(checkout)  # they read files by paths of the checkout
    suite, seen = unittest.TestSuite(), set()
    for module in MODULES:
        for test in _flat(unittest.defaultTestLoader.loadTestsFromName(f"pyspark.{module}")):
            is_own = test.id().startswith("pyspark.sql.tests.")
            if is_own and test.id() not in seen and (only is None or only in test.id()):
                seen.add(test.id())
                suite.addTest(test)
    return suite


def _flat(suite: Any) -> Any:
    for each in suite:
        yield from _flat(each) if isinstance(each, unittest.TestSuite) else (each,)


def run(suite: unittest.TestSuite, *, on_spark: bool) -> dict[str, dict[str, Any]]:
    taken = None
    if not on_spark:
        from penstock.api.takeover import TAKEN, Takeover  # noqa: PLC0415

        taken = TAKEN.add(None, Takeover())

    def made(*arguments: Any, **options: Any) -> Outcomes:
        outcomes = Outcomes(*arguments, **options)
        outcomes.taken = taken
        return outcomes

    result = unittest.TextTestRunner(verbosity=2, resultclass=made).run(suite)
    assert isinstance(result, Outcomes)
    return result.outcomes


def report(outcomes: dict[str, dict[str, Any]]) -> int:
    """Print every test and the sums; return how many have not the outcome that is expected."""
    surprises = 0
    for name, facts in sorted(outcomes.items()):
        expected, reason = EXPECTED.get(name, (PASSED, ""))
        is_surprise = facts["outcome"] not in (expected, SKIPPED)
        surprises += is_surprise
        mark = "  (not expected)" if is_surprise else ""
        print(f"{facts['outcome']:9}  {name}{mark}")
        for why in facts["why"] if is_surprise or not reason else [reason]:
            print(f"           {why}")
    for outcome in (PASSED, FELL_BACK, FAILED, SKIPPED):
        count = sum(facts["outcome"] == outcome for facts in outcomes.values())
        print(f"{count:4} {outcome}")
    return surprises


def share(here: dict[str, dict[str, Any]], on_spark: dict[str, dict[str, Any]]) -> str:
    """How many of the tests that pass on Spark pass here."""
    wanted = [name for name, facts in on_spark.items() if facts["outcome"] == PASSED]
    found = [here.get(name, {"outcome": "not run"})["outcome"] for name in wanted]
    passed, fell_back = found.count(PASSED), found.count(FELL_BACK)
    return (
        f"of {len(wanted)} tests that pass on Structured Streaming {passed} pass here "
        f"({100 * passed / max(len(wanted), 1):.1f} %), {fell_back} fell back"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--json", type=Path, help="add the outcomes to this file")
    parser.add_argument("--beside", type=Path, help="outcomes with --spark to compare with")
    parser.add_argument("--only", help="tests whose name holds this")
    parser.add_argument("--spark", action="store_true", help="on Structured Streaming instead")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    target = None if args.json is None else args.json.absolute()
    on_spark = None if args.beside is None else json.loads(args.beside.read_text(encoding="utf-8"))
    checkout = args.checkout.absolute()
    outcomes = {
        name: run_example(checkout, example, on_spark=args.spark)
        for example in EXAMPLES
        if (name := f"examples.{example.file.removesuffix('.py')}") and (args.only or "") in name
    }
    outcomes |= run(load(checkout, args.only), on_spark=args.spark)
    surprises, known = report(outcomes), outcomes
    if target is not None:
        if target.exists():
            known = json.loads(target.read_text(encoding="utf-8")) | outcomes
        target.write_text(json.dumps(known, indent=1), encoding="utf-8")
    if on_spark is not None:
        print(share(known, on_spark))
    return 1 if surprises and not args.spark else 0


if __name__ == "__main__":
    sys.exit(main())
