"""`bench codecs`: every shape has codecs with figures, and something was chosen for each disk."""

from __future__ import annotations

import argparse
import json

from penstock.bench import codecs


def test_every_shape_has_codecs_and_choices() -> None:
    report = codecs.measure(argparse.Namespace(rows=3_000))
    found = json.loads(report.as_json())
    assert found["queries"]["constant"]["codecs"]["pack"]["ratio"] > 50
    for shape in found["queries"].values():
        assert shape["codecs"]["none"]["ratio"] > 0.9
        assert set(shape["chosen"]) == {str(disk) for disk in codecs.DISKS_MB_S}
    assert "doubles_walk" in report.as_table()
