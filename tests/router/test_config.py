"""root.toml and leaf.toml: what is wrong is told by file, key and nearest key, and nothing gives a traceback."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbctl.core.errors import ConfigError
from dlbctl.router.config import LeafFile, RootFile, find, load, parse, read_token
from dlbctl.router.sections import host_and_port
from dlbctl.router.upstream import Address

LEAF = '[leaf]\ncell = "c1"\n[[server]]\nurl = "http://10.0.0.1:8000"\n'
ROOT = '[root]\n[[cell]]\nname = "eu"\nleaves = ["http://10.0.0.1:9081"]\n'


def leaf(text: str, environment: dict[str, str] | None = None) -> LeafFile:
    return parse(text, LeafFile, file="leaf.toml", environment=environment)


def root(text: str, environment: dict[str, str] | None = None) -> RootFile:
    return parse(text, RootFile, file="root.toml", environment=environment)


def test_the_smallest_files_are_valid() -> None:
    assert leaf(LEAF).tier().targets[0].addresses == ("http://10.0.0.1:8000",)
    assert root(ROOT).tier().targets[0].name == "eu"


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        (LEAF.replace("cell", "cel"), "leaf.cel", "cell"),
        (LEAF.replace("[leaf]", "[leef]"), "leef", "leaf"),
        (LEAF.replace("url", "urls"), "server[0].urls", "url"),
        (LEAF + "[timeouts]\nfirst_byte = 1\n", "timeouts.first_byte", "first_byte_s"),
        (LEAF + "[http]\nheader_byte = 1\n", "http.header_byte", "header_bytes"),
        (LEAF + '[[endpoint]]\nname = "m"\npolicies = "x"\n', "endpoint[0].policies", "policy"),
        (LEAF + '[[endpoint]]\nname = "m"\n[endpoint.limits]\nmax_inflight = 1\n', "max_inflight", "max_in_flight"),
    ],
)
def test_an_unknown_key_is_told_with_its_path_and_the_nearest(text: str, key: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(text)
    assert caught.value.message.startswith("leaf.toml: unknown key ")
    assert key in caught.value.message
    assert caught.value.hint == f"did you mean {near}?"
    assert caught.value.exit_code == 3


def test_an_unknown_key_near_nothing_is_told_with_all_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(LEAF + "[timeouts]\nqqqq = 1\n")
    assert "connect_s" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LEAF.replace('"c1"', "7"), "leaf.toml: leaf.cell: Expected `str`, got `int`"),
        (LEAF.replace('cell = "c1"\n', ""), "leaf.toml: leaf.cell is missing"),
        ('[[server]]\nurl = "http://a:1"\n', "leaf.toml: leaf is missing"),
        ('[leaf]\ncell = "c"\n', "leaf.toml: server is missing"),
        (LEAF + "x = = 1", "leaf.toml: not valid TOML"),
        (LEAF + LEAF, "leaf.toml: not valid TOML"),
        (LEAF + "\0", "leaf.toml: not valid TOML"),
        (LEAF.replace("http://10.0.0.1:8000", "10.0.0.1:8000"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a:99999"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a:1/v1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://[::1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a:1?x"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://user:word@a:1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a..b:1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://:1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a b:1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://a\\r\\nx-evil: 1:1"), "server[0].url"),
        (LEAF.replace("http://10.0.0.1:8000", "http://" + "a" * 64 + ":1"), "server[0].url"),
        (LEAF + "weight = 0\n", "server[0].weight"),
        (LEAF + "weight = nan\n", "server[0].weight"),
        (LEAF + "weight = inf\n", "server[0].weight"),
        (LEAF + "slots = -1\n", "server[0].slots"),
        (LEAF + 'name = "a\\nb"\n', "server[0].name"),
        (LEAF + '[[server]]\nurl = "http://10.0.0.1:8000"\n', "two entries have the same"),
        (
            LEAF + '[[server]]\nname = "b"\nurl = "http://10.0.0.1:8000"\n',
            "server[1].url: 'http://10.0.0.1:8000' is ser",
        ),
        (LEAF.replace("10.0.0.1:8000", "A") + '[[server]]\nname = "b"\nurl = "http://a:80"\n', "server[1].url: "),
        (LEAF.replace('"c1"', '"c\\r\\n1"'), "leaf.cell"),
        (LEAF.replace('"c1"', '"c1"\nadmin = "unix:"'), "leaf.admin: 'unix:' names no path"),
        (LEAF.replace('"c1"', f'"c1"\nadmin = "unix:/{"a" * 108}"'), "leaf.admin: the path of the socket is 109 bytes"),
        (LEAF.replace('"c1"', f'"c1"\nadmin = "unix:/{"é" * 54}"'), "leaf.admin: the path of the socket is 109 bytes"),
        (LEAF.replace('"c1"', '"c1"\nadmin = "unix:/a\\u0000b"'), "leaf.admin: 'unix:/a"),
        (LEAF.replace('"c1"', '""'), "leaf.cell"),
        (LEAF.replace('"c1"', '"c1"\nlisten = "nowhere"'), "leaf.listen"),
        (LEAF.replace('"c1"', '"c1"\nlisten = "a:70000"'), "leaf.listen"),
        (LEAF.replace('"c1"', '"c1"\npeer_listen = "0.0.0.0:9081"'), "leaf.peer_listen"),
        (LEAF.replace('"c1"', '"c1"\nadmin = "0.0.0.0:9081"'), "leaf.admin"),
        (LEAF.replace('"c1"', '"c1"\ndrain_s = -1.0'), "leaf.drain_s"),
        (LEAF.replace('"c1"', '"c1"\ndrain_s = nan'), "leaf.drain_s"),
        (LEAF.replace('"c1"', '"c1"\nupstream_idle_s = -1'), "leaf.upstream_idle_s"),
        (LEAF.replace('"c1"', '"c1"\nhalf_close = "maybe"'), "leaf.half_close"),
        (LEAF + "[timeouts]\nidle_s = -1\n", "timeouts.idle_s"),
        (LEAF + "[http]\nheader_bytes = 0\n", "http.header_bytes"),
        (
            LEAF + "[http]\nbody_bytes = 10\ntotal_body_bytes = 9\n",
            "http.total_body_bytes: is less than body_bytes, 10",
        ),
        (LEAF + "[http]\nkeep_alive_s = -1.0\n", "http.keep_alive_s"),
        (LEAF + "[http]\nbody_timeout_s = nan\n", "http.body_timeout_s"),
        (LEAF + '[[endpoint]]\nname = "a\\nb"\n', "endpoint[0].name"),
        (LEAF + '[[endpoint]]\nname = "m"\npolicy = "best"\n', "endpoint[0].policy"),
        (LEAF + '[[endpoint]]\nname = "m"\npolicy = "discrete/best"\n', "endpoint[0].policy"),
        (LEAF + '[[endpoint]]\nname = "m"\npolicy = "weighted-random/rif"\n', "endpoint[0].policy"),
        (LEAF + '[[endpoint]]\nname = "m"\n[endpoint.flow]\nstepsize = -1\n', "endpoint[0].flow.stepsize"),
        (LEAF + '[[endpoint]]\nname = "m"\n[endpoint.flow]\nstepsize = inf\n', "endpoint[0].flow.stepsize"),
        (LEAF + '[[endpoint]]\nname = "m"\n[endpoint.flow]\nstepsize = nan\n', "endpoint[0].flow.stepsize"),
        (LEAF + '[[endpoint]]\nname = "m"\n[[endpoint]]\nname = "m"\n', "endpoint: two entries"),
    ],
)
def test_what_is_wrong_in_a_leaf_file_is_told_by_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(text)
    assert words in caught.value.message
    assert caught.value.message.startswith("leaf.toml: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[root]\n", "cell is missing"),
        ('[root]\n[[cell]]\nname = "a"\n', "needs either leaves or servers"),
        (ROOT + '[[cell.server]]\nurl = "http://a:1"\n', "needs either leaves or servers"),
        (ROOT + ROOT.removeprefix("[root]\n"), "two entries have the same name 'eu'"),
        (
            ROOT + '[[cell]]\nname = "us"\nleaves = ["http://10.0.0.2:9081", "http://10.0.0.1:9081/"]\n',
            "root.toml: cell[1].leaves[1]: 'http://10.0.0.1:9081/' is cell[0].leaves[0] too",
        ),
        (ROOT.replace('["', '["http://10.0.0.1:9081", "'), "cell[0].leaves[1]: 'http://10.0.0.1:9081' is cell[0].lea"),
        (ROOT + '[[cell]]\nname = "us"\n[[cell.server]]\nurl = "http://10.0.0.1:9081"\n', "cell[1].server[0].url: "),
        (ROOT.replace('"eu"', '""'), "cell[0].name"),
        (ROOT + "capacity_rps = -1\n", "cell[0].capacity_rps"),
        (ROOT + "capacity_rps = inf\n", "cell[0].capacity_rps"),
        (ROOT + "capacity_rps = nan\n", "cell[0].capacity_rps"),
        (ROOT.replace('"eu"', '"e\\nu"'), "cell[0].name"),
        (ROOT.replace('["http://10.0.0.1:9081"]', '["a"]'), "cell[0].leaves[0]"),
        (ROOT.replace("[root]", '[root]\nlisten = ":x"'), "root.listen"),
        (ROOT.replace("[root]", "[root]\nprobe_interval_ms = 1"), "root.probe_interval_ms"),
    ],
)
def test_what_is_wrong_in_a_root_file_is_told_by_its_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        root(text)
    assert words in caught.value.message


def test_a_cell_has_the_capacity_that_its_file_says() -> None:
    (known,) = root(ROOT + "capacity_rps = 12.5\n").tier().targets
    (unknown,) = root(ROOT).tier().targets
    assert (known.capacity_rps, unknown.capacity_rps) == (12.5, 0.0)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://10.0.0.1:8000", ("10.0.0.1", 8000, False, b"10.0.0.1:8000")),
        ("http://A.example./", ("a.example.", 80, False, b"A.example.")),
        ("https://[::1]", ("::1", 443, True, b"[::1]")),
    ],
)
def test_an_address_is_taken_apart(url: str, parts: tuple[str, int, bool, bytes]) -> None:
    address = Address(url)
    assert (address.host, address.port, address.tls, address.authority) == parts


# -- the environment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words", "hint"),
    [
        ('rule = "papre"', "endpoint[0].flow.rule: Invalid enum value 'papre'", "did you mean paper?"),
        ('split = "x"', "endpoint[0].flow.split: Invalid enum value 'x'", "one of: random, deficit"),
        ('automatic = "yes"', "endpoint[0].flow.automatic: Expected `bool`, got `str`", ""),
    ],
)
def test_a_word_that_is_not_allowed_is_told_with_those_that_are(line: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(LEAF + f'[[endpoint]]\nname = "m"\n[endpoint.flow]\n{line}\n')
    assert caught.value.message == f"leaf.toml: {words}"
    assert caught.value.hint == hint


def test_the_environment_overrides_values() -> None:
    made = leaf(
        LEAF + 'name = "s-1"\n[[endpoint]]\nname = "Qwen3 35B"\n',
        {
            "DLBCTL_LEAF__LISTEN": "127.0.0.1:1",
            "DLBCTL_LEAF__DRAIN_S": "5",
            "DLBCTL_SERVER__0__WEIGHT": "2.5",
            "DLBCTL_SERVER__S_1__ENDPOINTS": '["a", "b"]',
            "DLBCTL_ENDPOINT__QWEN3_35B__LIMITS__MAX_IN_FLIGHT": "3",
            "DLBCTL_TIMEOUTS__IDLE_S": "7.5",
        },
    )
    assert (made.leaf.listen, made.leaf.drain_s) == ("127.0.0.1:1", 5.0)
    assert (made.server[0].weight, made.server[0].endpoints) == (2.5, ("a", "b"))
    assert made.endpoint[0].limits.max_in_flight == 3
    assert made.timeouts.idle_s == 7.5


def test_variables_that_address_no_section_are_left_alone() -> None:
    names = ("DLBCTL_TARGET", "DLBCTL_ROOT__LISTEN", "DLBCTL_", "DLBCTL_LEAF", "PATH", "LEAF__LISTEN")
    others = ("DLBCTL_ADMIN", "DLBCTL_LEAF_SERVICE_HOST", "DLBCTL_SERVER_URL", "DLBCTL_LISTEN")
    assert leaf(LEAF, dict.fromkeys(names + others, "x")) == leaf(LEAF)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DLBCTL_LEAF__LISTN", "127.0.0.1:1", "unknown key leaf.listn"),
        ("DLBCTL_LEAF__DRAIN_S", "soon", "leaf.drain_s: Expected `float`"),
        ("DLBCTL_LEAF__", "1", "unknown key leaf"),
        ("DLBCTL_SERVER__0", "1", "environment variable DLBCTL_SERVER__0: "),
        ("DLBCTL_SERVER__7__WEIGHT", "1", "environment variable DLBCTL_SERVER__7__WEIGHT: "),
        ("DLBCTL_SERVER__NONE__WEIGHT", "1", "environment variable DLBCTL_SERVER__NONE__WEIGHT: "),
        ("DLBCTL_SERVER__WEIGHT", "1", "environment variable DLBCTL_SERVER__WEIGHT: "),
        ("DLBCTL_ENDPOINT__M__POLICY", "discrete/rif", "environment variable DLBCTL_ENDPOINT__M__POLICY: "),
        ("DLBCTL_LEAF__LISTEN", "x:" + "1" * 5000, "environment variable DLBCTL_LEAF__LISTEN: "),
        ("DLBCTL_LEAF__CELL__NAME", "1", "environment variable DLBCTL_LEAF__CELL__NAME: "),
        ("DLBCTL_LEAF__CELL__NAME__MORE", "1", "environment variable DLBCTL_LEAF__CELL__NAME__MORE: "),
    ],
)
def test_a_variable_that_does_not_fit_is_told_by_its_name_or_key(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(LEAF, {name: value})
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("DLBCTL_LEEF__LISTEN", "there is no section 'leef'", "did you mean DLBCTL_LEAF__LISTEN?"),
        ("DLBCTL_TIMEOUT__IDLE_S", "there is no section 'timeout'", "did you mean DLBCTL_TIMEOUTS__IDLE_S?"),
        ("DLBCTL_QQQ__IDLE_S", "there is no section 'qqq'", "sections: access_log, cell, endpoint, "),
        ("DLBCTL___LISTEN", "there is no section ''", "sections: "),
        ("DLBCTL_LEAF_LISTEN", "overrides nothing", "did you mean DLBCTL_LEAF__LISTEN?"),
        ("DLBCTL_LEAF__LISTN", "unknown key leaf.listn", "did you mean listen?"),
    ],
)
def test_a_mistyped_variable_is_told_with_the_nearest(name: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        leaf(LEAF, {name: "1"})
    assert caught.value.message == f"environment variable {name}: {words}" + " to override" * ("section" in words)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DLBCTL_LEAF__DRAIN_S", "soon", "leaf.drain_s: Expected `float`, got `str`"),
        ("DLBCTL_LEAF__DRAIN_S", "-1", "leaf.drain_s: cannot be negative"),
        ("DLBCTL_LEAF__PEER_LISTEN", "0.0.0.0:1", "leaf.peer_listen: '0.0.0.0:1' is open to other machines"),
        ("DLBCTL_SERVER__S_1__WEIGHT", "0", "server[0].weight: must be positive"),
        ("DLBCTL_SERVER__0__URL", "nowhere", "server[0].url: 'nowhere' is not an address"),
        ("DLBCTL_TIMEOUTS__IDLE_S", "nan", "timeouts.idle_s: a time-out cannot be negative"),
        ("DLBCTL_SERVER__0__ENDPOINTS", "[1]", "server[0].endpoints[0]: Expected `str`, got `int`"),
    ],
)
def test_a_bad_value_is_blamed_on_the_variable_it_comes_from(name: str, value: str, words: str) -> None:
    text = LEAF + 'name = "s-1"\n'
    with pytest.raises(ConfigError) as caught:
        leaf(text, {"DLBCTL_LEAF__LISTEN": "127.0.0.1:1", name: value})
    assert caught.value.message.startswith(f"environment variable {name}: {words}")
    with pytest.raises(ConfigError, match=r"^leaf.toml: timeouts"):
        leaf(text + "[timeouts]\nconnect_s = -1\n", {"DLBCTL_TIMEOUTS__IDLE_S": "1"})


@pytest.mark.parametrize("value", ["plain", "[[[", '"', "= 1"])
def test_a_value_of_the_environment_that_is_no_toml_is_text(value: str) -> None:
    assert leaf(LEAF, {"DLBCTL_LEAF__CELL": value}).leaf.cell == value


# -- anything ----------------------------------------------------------------------------------------------

WORDS = """
    [leaf] [root] [[server]] [[cell]] [[cell.server]] [[endpoint]] [timeouts] [http] cell name url leaves = "a" 1 -1
    nan inf true ["a"] {a=1} [[]] "http://a:1" . 1979-05-27 policy limits weight idle_s \"\"\" ' # endpoint.limits
    [endpoint.x] 999999999999999999999999999999
"""
words = st.sampled_from(WORDS.split())
texts = st.text(max_size=60) | st.lists(words, max_size=25).map(" ".join) | st.lists(words, max_size=25).map("\n".join)
variables = st.dictionaries(
    st.lists(
        st.sampled_from(("LEAF", "ROOT", "SERVER", "CELL", "0", "NAME", "URL", "WEIGHT", "A", "TIMEOUTS", "")),
        max_size=4,
    ).map(lambda parts: "DLBCTL_" + "__".join(parts)),
    st.text(max_size=20) | words,
    max_size=3,
)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(text=texts, environment=variables)
def test_any_text_is_a_configuration_or_a_clear_error(text: str, environment: dict[str, str]) -> None:
    for read in (leaf, root):
        with contextlib.suppress(ConfigError):
            read(text, environment)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(environment=variables, addition=texts)
def test_any_change_of_a_sound_file_is_a_configuration_or_a_clear_error(
    environment: dict[str, str], addition: str
) -> None:
    for read, sound in ((leaf, LEAF), (root, ROOT)):
        with contextlib.suppress(ConfigError):
            read(sound + addition, environment)


# -- files -------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            load(path, LeafFile, {})
        assert str(path) in caught.value.message
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[leaf]\ncell = "caf\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(path, LeafFile, {})


def test_a_file_is_looked_for_here_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaf.toml").write_text(LEAF)
    assert find("leaf", None) == Path("leaf.toml")
    assert find("leaf", tmp_path / "other.toml") == tmp_path / "other.toml"
    with pytest.raises(ConfigError, match=r"neither root\.toml nor /etc/dlbctl/root\.toml exists"):
        find("root", None)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"a\x00b", b"caf\xc3\xa9"])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    section = leaf(LEAF.replace('"c1"', f'"c1"\npeer_token_file = "{path}"')).leaf
    with pytest.raises(ConfigError) as caught:
        read_token(section)
    assert str(path) in caught.value.message
    assert "two words" not in caught.value.message


def test_a_token_is_read_without_the_blanks_around_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  s3cret\n")
    section = leaf(LEAF.replace('"c1"', f'"c1"\npeer_token_file = "{path}"')).leaf
    assert read_token(section) == b"s3cret"


@pytest.mark.parametrize(
    ("text", "pair"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:80", ("::1", 80)), (":80", ("0.0.0.0", 80)), ("a:0", ("a", 0))],
)
def test_host_and_port_are_split(text: str, pair: tuple[str, int]) -> None:
    assert host_and_port(text, "x") == pair


@pytest.mark.parametrize("text", ["80", "a:", "a:b", "a:-1", "a:65536", "a:²", "", "a:٣"])
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="x: "):
        host_and_port(text, "x")
