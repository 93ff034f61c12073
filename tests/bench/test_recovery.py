"""`penstock bench recovery`: what its figures and goals follow from."""

from __future__ import annotations

from penstock.bench.recovery import Kill, report_of


def test_goals_follow_from_the_kills() -> None:
    kills = [Kill(1.0, 2.0, 100.0, total_ms) for total_ms in (200.0, 300.0, 1_900.0)]
    report = report_of(kills, lost=0, doubled=0)
    assert (report.value("median_ms"), report.value("max_ms")) == (300.0, 1_900.0)
    assert all(report.reach.values())
    slow = report_of([Kill(1.0, 2.0, 3.0, 2_500.0)], lost=3, doubled=1)
    assert not any(slow.reach.values())
    assert (slow.value("lost"), slow.value("duplicated")) == (3, 1)
