"""The access log: a line for each request, nothing of its text, never in the way, nothing lost without a word."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dlbctl.core.errors import ConfigError
from dlbctl.core.settings import TargetSettings
from dlbctl.router import access_log
from dlbctl.router.access_log import AccessLine, AccessLog
from dlbctl.router.record import Record
from dlbctl.router.request import Request

from .live import chain, client_of, leaf, on_loop, root, server, until
from .process import engine, launch, leaf_file, running
from .scripted import answering, chunk, serving, sized
from .test_ledger import USAGE, lines, named
from .test_lifecycle import STREAM_HEAD, Streaming, names_in, streaming_client
from .wire import chat, post

SECRET = "sk-kept-to-itself"


def record(path: bytes = b"/v1/x", endpoint: str = "m") -> Record:
    request = Request()
    request.method, request.url = b"POST", path
    return Record(1, "id", endpoint, request, b"10.0.0.9", peer=False)


def with_log(config: Path, path: str) -> Path:
    """The same configuration with an access log."""
    config.write_text(f'{config.read_text()}[access_log]\npath = "{path}"\n')
    return config


@on_loop
async def test_a_line_tells_all_there_is_to_tell(tmp_path: Path) -> None:
    async with chain(answering(sized(USAGE))) as (_, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        before = datetime.now(UTC)
        answer = await client.ask(named("r1"))
        await live.settled()
    (line,) = lines(tmp_path / "log")
    assert tuple(line) == AccessLine.__struct_fields__
    assert 0 <= (datetime.fromisoformat(line.pop("time")) - before).total_seconds() < 5
    assert 0 < line.pop("overhead_s") <= line.pop("ttft_s") <= line.pop("e2e_s") < 5
    assert line.pop("bytes_out") > len(answer.body)
    assert line == {
        "kind": "request",
        "id": "r1",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "endpoint": "m",
        "status": 200,
        "code": "ok",
        "by": "nobody",
        "phase": "complete",
        "cell": "c1",
        "server": "s",
        "source": "",
        "root": "",
        "attempts": 1,
        "queue_s": 0.0,
        "bytes_in": len(b'{"model":"m"}'),
        "tokens_in": 12,
        "tokens_out": 7,
        "tokens_cached": 4,
    }


@on_loop
async def test_what_was_sent_to_the_client_is_counted_to_the_byte(tmp_path: Path) -> None:
    for number, answer in enumerate((sized(b"x" * 99), STREAM_HEAD + chunk(b"a") + chunk(b"bc") + b"0\r\n\r\n")):
        path = tmp_path / str(number)
        async with chain(answering(answer)) as (_, live, client):
            live.router.ledger.access_log = AccessLog(str(path))
            await client.send(chat().replace(b"Host: t", b"Host: t\r\nConnection: close"))
            sent = await client.rest()
            await live.settled()
        assert [line["bytes_out"] for line in lines(path)] == [len(sent)]


@on_loop
async def test_a_leaf_tells_which_root_a_request_came_through_and_whose_it_was(tmp_path: Path) -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)], token=b"k") as eu,
        root([TargetSettings("eu", (f"http://127.0.0.1:{eu.peer_port}",))], token=b"k") as live,
        client_of(live) as client,
        client_of(eu) as stranger,
    ):
        address = f"http://127.0.0.1:{eu.peer_port}"
        live.tier.state_reported(live.router.clock(), "eu", address, eu.tier.report(0.0), 0.0)
        live.router.ledger.access_log = AccessLog(str(tmp_path / "root"), source="here", root="boot-root")
        eu.router.ledger.access_log = AccessLog(str(tmp_path / "leaf"))
        assert (await client.ask(named("r1"))).status == 200
        forged = b"dlb-source: forged\r\ndlb-root: forged\r\nX-Forwarded-For: 6.6.6.6\r\n"
        assert (await stranger.ask(post(b'{"model":"m"}', extra=forged))).status == 200
        await live.settled()
        await eu.settled()
    (above,) = lines(tmp_path / "root")
    below, direct = lines(tmp_path / "leaf")
    assert (above["source"], above["root"], above["cell"], above["server"]) == ("here", "boot-root", "eu", "s")
    assert (below["source"], below["root"], below["id"], below["client"]) == ("here", "boot-root", "r1", "127.0.0.1")
    assert (direct["source"], direct["root"], direct["client"]) == ("", "", "127.0.0.1")


@on_loop
async def test_no_line_holds_a_secret_or_a_prompt(tmp_path: Path) -> None:
    """Case 46: headers, body and query stay out, whatever becomes of the request."""
    said = f"authorization: Bearer {SECRET}\r\ncookie: a={SECRET}\r\nx-api-key: {SECRET}\r\n".encode()
    body = b'{"model":"%b","prompt":"%b","user":"%b"}'
    async with chain(answering(sized(b'{"text":"%b"}' % SECRET.encode()))) as (_, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        for model, path in ((b"m", "/v1/chat/completions?key="), (b"none", "/v1/x?"), (b"m", "/nowhere?a=")):
            asked = post(body % (model, SECRET.encode(), SECRET.encode()), path=path + SECRET, extra=said)
            await client.ask(asked)
        await live.settled()
        shown = [repr(relay.record) for relay in live.router.ledger.open.values()]
    written = (tmp_path / "log").read_text()
    assert len(written.splitlines()) == 3
    assert SECRET not in written + str(shown)


@on_loop
async def test_a_line_does_not_grow_with_what_clients_choose(tmp_path: Path) -> None:
    log = AccessLog(str(tmp_path / "log"))
    log.note(record(b"/v1/" + b"x" * 30_000, "m" * 1_000_000), 1.0, 404, "unknown_model", None)
    log.close()
    assert len((tmp_path / "log").read_text()) < 2000


@on_loop
async def test_lines_that_find_no_room_are_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk hangs (a pipe that nobody reads): requests go on, memory stays bounded."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(tmp_path / "log"), lines_kept=100)
    for _ in range(3000):
        log.note(record(), 1.0, 200, "ok", None)
        log.flush()
    assert log.dropped > 2000, "a pipe holds less than 300 lines, and 300 wait at most"
    os.set_blocking(reader, True)
    asyncio.get_running_loop().run_in_executor(None, log.close)
    data = b""
    while piece := await asyncio.to_thread(os.read, reader, 65536):
        data += piece
    os.close(reader)
    whole = [json.loads(line) for line in data.splitlines()]
    assert len(whole) + log.dropped == 3000
    assert sum(map(int, re.findall(r"(\d+) lines lost", caplog.text))) == log.dropped


def test_a_reader_that_hangs_does_not_keep_the_process_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "CLOSE_S", 0.05)
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(tmp_path / "log"))
    for _ in range(3000):
        log.note(record(), 1.0, 200, "ok", None)
    log.close()
    assert "its last lines are lost" in caplog.text
    os.close(reader)


def test_a_full_disk_costs_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    log = AccessLog("/dev/full")
    log.note(record(), 1.0, 200, "ok", None)
    log.close()
    assert log.dropped == 1
    assert "access log /dev/full: No space left on device" in caplog.text
    assert "1 lines lost" in caplog.text


@on_loop
async def test_a_line_that_the_disk_took_half_of_spoils_none_after_it(tmp_path: Path) -> None:
    """What a disk that is full for a while does: of the lines lost each is counted, of the others each can be read."""
    path = tmp_path / "log"
    log = AccessLog(str(path))
    log.note(record(), 1.0, 200, "ok", None)
    log.flush()
    await until(lambda: path.stat().st_size > 0)
    size = path.stat().st_size
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * size + size // 2, unlimited[1]))
    try:
        for _ in range(4):
            log.note(record(), 1.0, 200, "ok", None)
        log.flush()
        await until(lambda: log.dropped > 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    log.note(record(), 1.0, 200, "ok", None)
    log.close()
    written = path.read_bytes().splitlines()
    torn = written.pop(3)
    assert (log.dropped, torn.endswith(b"}")) == (2, False)
    assert [json.loads(line)["code"] for line in written] == ["ok"] * 4


@on_loop
async def test_a_log_that_cannot_be_made_leaves_no_socket_behind(tmp_path: Path) -> None:
    config = with_log(leaf_file(tmp_path, "http://127.0.0.1:1"), f"{tmp_path}/none/log")
    process = await launch("leaf", config)
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert errors.decode().startswith(f"dlbctl: error: {config}: access_log.path: {tmp_path}/none/log: cannot be ")
    assert names_in(tmp_path) == [config.name]


def test_a_file_that_cannot_be_made_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access_log\.path: .*/none/log: cannot be written: No such file"):
        AccessLog(f"{tmp_path}/none/log")


# -- as a process ------------------------------------------------------------------------------------------


@on_loop
async def test_every_line_is_in_the_file_when_the_process_has_ended(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = with_log(leaf_file(tmp_path, made.url, readiness_grace_s=0.0), f"{tmp_path}/log")
        async with running("leaf", config, 2) as process:
            await process.ready()
            for _ in range(5):
                assert (await process.ask(chat())).status == 200
            process.signal(signal.SIGTERM)
            assert (await process.ended())[0] == 0
    assert [line["code"] for line in lines(tmp_path / "log")] == ["ok"] * 5
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


@on_loop
async def test_a_file_that_is_moved_away_is_made_anew_on_sighup(tmp_path: Path) -> None:
    log, moved = tmp_path / "log", tmp_path / "log.1"
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = with_log(leaf_file(tmp_path, made.url), str(log))
        async with running("leaf", config, 2) as process:
            await process.ready()
            assert (await process.ask(chat())).status == 200
            await until(lambda: log.stat().st_size > 0)
            log.rename(moved)
            process.signal(signal.SIGHUP)
            await until(log.exists)
            assert (await process.ask(chat())).status == 200
            await until(lambda: log.stat().st_size > 0)
    assert (len(lines(moved)), len(lines(log))) == (1, 1)


@on_loop
async def test_standard_output_takes_it_after_what_is_announced(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = with_log(leaf_file(tmp_path, made.url, readiness_grace_s=0.0), "stdout")
        async with running("leaf", config, 2) as process:
            await process.ready()
            assert (await process.ask(chat())).status == 200
            assert process.process.stdout is not None
            line: dict[str, Any] = json.loads(await process.process.stdout.readline())
            assert (line["code"], line["endpoint"]) == ("ok", "m")


@on_loop
async def test_what_is_cut_at_the_drain_deadline_did_not_leave_by_itself(tmp_path: Path) -> None:
    async with serving(engine(Streaming().serve)) as made:
        config = with_log(leaf_file(tmp_path, made.url, readiness_grace_s=0.0, drain_s=0.2), f"{tmp_path}/log")
        async with running("leaf", config, 2) as process:
            await process.ready()
            client = await streaming_client(process.ports["listening"])
            process.signal(signal.SIGTERM)
            assert (await process.ended())[0] == 0
            client.abort()
    assert [(line["code"], line["by"], line["phase"]) for line in lines(tmp_path / "log")] == [
        ("drain_timeout", "operator", "streaming")
    ]
