"""Targets: how they are written, and which a session goes to."""

from __future__ import annotations

from collections import Counter

import pytest

from dlbctl.core.errors import UsageError
from dlbctl.replay.targets import Target, parse_target, parse_targets, ranked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://10.0.0.5:8080", Target("10.0.0.5:8080", "http", "10.0.0.5", 8080)),
        ("http://host:3", Target("host:3", "http", "host", 3)),
        ("http://host:8080:3", Target("host:8080", "http", "host", 8080, weight=3.0)),
        ("http://host=3", Target("host:80", "http", "host", 80, weight=3.0)),
        ("eu=https://host=0.5", Target("eu", "https", "host", 443, weight=0.5)),
        ("eu=http://host:1:2.5", Target("eu", "http", "host", 1, weight=2.5)),
        ("http://[::1]:80:2", Target("::1:80", "http", "::1", 80, weight=2.0)),
        ("http://host:1/v1/", Target("host:1", "http", "host", 1)),
        ("http://host:1/llm/v1=2", Target("host:1", "http", "host", 1, "/llm", 2.0)),
    ],
)
def test_a_target_may_have_a_name_a_path_and_a_weight(text: str, expected: Target) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "host:80", "ftp://host", "http://host:99999", "http://host:80:0", "http://host:80=-1", "http://h:1=1.2.3",
     "http://h:1?x=1", "http://user:pw@h:1", "a b=http://h", "http://h\r\nx:1"],
)  # fmt: skip
def test_what_is_no_target_is_a_usage_error_that_shows_how(text: str) -> None:
    with pytest.raises(UsageError, match=r"--target"):
        parse_target(text)


def test_two_targets_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse_targets(["a=http://h:1", "a=http://h:2"])


def test_an_ipv6_host_is_bracketed_where_urls_and_host_headers_need_it() -> None:
    assert parse_target("http://[::1]:80").host_header == "[::1]:80"


def test_sessions_spread_by_weight_stay_put_and_never_change_place() -> None:
    targets = parse_targets(["a=http://h:1=1", "b=http://h:2=2", "c=http://h:3=1"])
    names = [ranked(targets, f"session {number}")[0].name for number in range(4000)]
    shares = {name: count / 4000 for name, count in Counter(names).items()}
    # Binomial standard deviation under 0.8 %: four of them.
    assert shares == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.25}, abs=0.032)
    assert "".join(names[:12]) == "bbbbbcbcbcbb"


def test_a_session_s_second_choice_is_where_it_goes_without_its_first() -> None:
    targets = parse_targets(["a=http://h:1", "b=http://h:2", "c=http://h:3"])
    for number in range(100):
        first, *rest = ranked(targets, str(number))
        assert ranked(tuple(target for target in targets if target != first), str(number)) == rest


def test_several_targets_may_come_in_one_text_with_commas_as_an_environment_variable_holds_them() -> None:
    apart = parse_targets(["us=http://host:1:2", "http://host:2"])
    assert parse_targets(["us=http://host:1:2,http://host:2"]) == apart
    assert [target.name for target in apart] == ["us", "host:2"]


@pytest.mark.parametrize("text", ["http://host:1,", ",", ""])
def test_a_target_that_was_left_empty_is_not_passed_over(text: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        parse_targets([text])
