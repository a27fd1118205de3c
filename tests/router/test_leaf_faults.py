"""Leaves that cannot be used: logged when that changes and now and then while it lasts, never at every attempt."""

from __future__ import annotations

import logging

import pytest

from dlbctl.router.leaf_faults import NO_ANSWER, OTHER_TOKEN, REMIND_S, LeafFaults

LEAF = "http://10.0.0.1:9081"


def test_a_fault_is_logged_when_it_is_news_and_as_a_reminder(caplog: pytest.LogCaptureFixture) -> None:
    faults = LeafFaults()
    attempts = [(now_s, NO_ANSWER) for now_s in range(0, 700, 2)] + [(701, OTHER_TOKEN), (703, OTHER_TOKEN)]
    for now_s, fault in attempts:
        faults.note(float(now_s), "eu", LEAF, fault)
        assert faults.of(LEAF) == fault
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"leaf {LEAF} of cell eu {fault}; trying on" for fault in (NO_ANSWER,) * 3 + (OTHER_TOKEN,)]
    assert REMIND_S > 60


def test_its_end_is_logged_once_and_what_comes_later_is_news(caplog: pytest.LogCaptureFixture) -> None:
    faults = LeafFaults()
    with caplog.at_level(logging.INFO):
        faults.clear("eu", LEAF)
        faults.note(0.0, "eu", LEAF, NO_ANSWER)
        faults.clear("eu", LEAF)
        faults.clear("eu", LEAF)
        assert faults.of(LEAF) == ""
        faults.note(1.0, "eu", LEAF, NO_ANSWER)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
