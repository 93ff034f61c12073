"""The rows and expressions that Spark has judged, checked against the reference as well."""

from __future__ import annotations

import json
import pickle

import pytest

from penstock.expressions.tree import from_json
from tests.expressions.against_reference import check_against_reference
from tests.expressions.spark_cases import ZONES, Rows, all_rows, time_rows

GROUPS = [*all_rows(), *(rows for zone in ZONES for rows in time_rows(zone))]
NAMES = [f"{index} {rows.name}" for index, rows in enumerate(GROUPS)]


@pytest.mark.parametrize("rows", GROUPS, ids=NAMES)
def test_the_engine_agrees_with_the_reference(rows: Rows) -> None:
    for case in rows.cases:
        check_against_reference(case.tree, rows.batch, case.close)


@pytest.mark.parametrize("rows", GROUPS, ids=NAMES)
def test_every_tree_survives_json_and_pickle(rows: Rows) -> None:
    for case in rows.cases:
        text = json.dumps(case.tree.to_json(), allow_nan=False)
        again = from_json(json.loads(text))
        assert again == case.tree
        assert hash(again) == hash(case.tree)
        assert pickle.loads(pickle.dumps(case.tree)) == case.tree
        assert str(again) == str(case.tree)
