"""The few fields of a body that routing reads, from any body whatever."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.router.facts import BadBodyError, read_facts

JSON = b"application/json"


@pytest.mark.parametrize(
    ("body", "model", "cap"),
    [
        (b'{"model":"m"}', "m", 0),
        (b'{"model":"m","max_tokens":9}', "m", 9),
        (b'{"model":"m","max_tokens":9,"max_completion_tokens":5}', "m", 5),
        (b'{"max_completion_tokens":null,"max_tokens":9,"model":"m"}', "m", 9),
        (b'{"model":"m","max_tokens":-1}', "m", 0),
        (b'{"model":"m","max_tokens":"9"}', "m", 0),
        (b'{"model":"m","max_tokens":1.5}', "m", 0),
        (b'{"model":"m","messages":[{"content":"\\"model\\":\\"x\\""}],"metadata":{"model":"x"}}', "m", 0),
        (b'{"model":"\\u006d"}', "m", 0),
        (b'{"prompt":"x"}', "", 0),
        (b" \r\n\t{}", "", 0),
    ],
)
def test_fields_are_read_from_the_top_of_a_body(body: bytes, model: str, cap: int) -> None:
    facts = read_facts(body, JSON)
    assert (facts.model, facts.max_output_tokens) == (model, cap)


@pytest.mark.parametrize(
    ("body", "session"),
    [
        (b'{"model":"m"}', b""),
        (b'{"prompt_cache_key":"s-1","model":"m"}', b"s-1"),
        (b'{"prompt_cache_key" : "\\u00e9\xc3\xa9" }', b"\\u00e9\xc3\xa9"),
        (b'{"prompt_cache_key":""}', b""),
        (b'{"prompt_cache_key":null}', b""),
        (b'{"prompt_cache_key":7}', b""),
        (b'{"prompt_cache_key":{"a":"b"}}', b""),
        (b'{"metadata":{"prompt_cache_key":"s-1"}}', b""),
    ],
)
def test_a_key_for_the_prompt_s_cache_is_told_as_it_is_spelled(body: bytes, session: bytes) -> None:
    assert read_facts(body, JSON).session == session


def test_json_is_recognised_whatever_its_type_is_called() -> None:
    assert read_facts(b'{"model":"m"}', b"").model == "m"
    assert read_facts(b'{"model":"m"}', b"application/vnd.api+json; charset=utf-8").model == "m"
    assert read_facts(b"\x00\x01", b"application/octet-stream").model == ""


@settings(derandomize=True, deadline=None, max_examples=150)
@given(body=st.binary() | st.text().map(str.encode), kind=st.sampled_from((JSON, b"", b"multipart/form-data; b=x")))
def test_any_body_is_read_or_refused(body: bytes, kind: bytes) -> None:
    with contextlib.suppress(BadBodyError):
        assert isinstance(read_facts(body, kind).model, str)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    document=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("model", "max_tokens", "max_completion_tokens", "prompt_cache_key", "x"), anything),
    )
)
def test_any_document_is_read_or_refused(document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    with contextlib.suppress(BadBodyError):
        facts = read_facts(body, JSON)
        assert isinstance(facts.model, str)
        assert facts.max_output_tokens >= 0


def test_a_form_of_megabytes_is_searched_in_no_time() -> None:
    form = b'--b\r\ncontent-disposition: form-data; name="model"\r\n' + b"a: b\r\n" * 500_000
    assert read_facts(form, b"multipart/form-data; boundary=b").model == ""
