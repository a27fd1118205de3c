"""The event log: its file and parts, and the law itself on a live router: run again offline, the same actions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from dlbctl.core.errors import ConfigError
from dlbctl.core.events import ClientGone, PolicySet, TimerFired
from dlbctl.core.offline import VERSION, Entry, Header, TimerSet, replay
from dlbctl.core.settings import TargetSettings, TierSettings
from dlbctl.router import eventlog
from dlbctl.router.eventlog import EventLog

from .live import on_loop, until
from .scripted import Connection, refusing_port, serving, sized
from .wire import Client, post

SETTINGS = TierSettings("leaf", "here", (TargetSettings("s", ("http://s:1",), ("m",)),), seed=4)
LINE = msgspec.json.Decoder(Header | Entry)


def lines_of(path: Path) -> list[Header | Entry]:
    return [LINE.decode(line) for line in path.read_bytes().splitlines()]


def log_at(path: Path, *, part_bytes: int = 1 << 20, kept: int = 3, boot: str = "b00t") -> EventLog:
    return EventLog(path, SETTINGS, boot, part_bytes=part_bytes, kept=kept)


# -- the file ----------------------------------------------------------------------------------------------


def test_begins_with_the_header_and_holds_what_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_at(path)
    log.note(1.5, TimerFired(), None)
    log.note(0.1 + 0.2, ClientGone(7), None)
    log.close()
    header, *entries = lines_of(path)
    assert header == Header(VERSION, 0, "b00t", SETTINGS)
    assert entries == [Entry(1.5, TimerFired()), Entry(0.1 + 0.2, ClientGone(7))]
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_before_a_flush_and_notes_after_closing_are_dropped(tmp_path: Path) -> None:
    log = log_at(tmp_path / "log")
    log.note(1.0, TimerFired(), None)
    assert (tmp_path / "log").stat().st_size == 0
    assert "bytes waiting" in repr(log)
    log.close()
    log.note(2.0, TimerFired(), None)
    assert len(lines_of(tmp_path / "log")) == 2


@on_loop
async def test_what_waits_is_written_without_being_asked(tmp_path: Path) -> None:
    log = log_at(tmp_path / "log")
    log.note(1.0, TimerFired(), None)
    writing = asyncio.create_task(log.run())
    await until(lambda: (tmp_path / "log").stat().st_size > 0)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    log.close()


def fill(log: EventLog, parts: int) -> None:
    for part in range(parts):
        log.note(float(part), PolicySet("m", "x" * 1000), None)
        log.flush()
        if log._writing is not None:
            log._writing.result()


def test_a_full_part_is_put_aside_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = log_at(path, part_bytes=1000, kept=3)
    fill(log, 5)
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    headers = [lines_of(tmp_path / name)[0] for name in ("log.2", "log.1", "log")]
    assert [header.part for header in headers if isinstance(header, Header)] == [2, 3, 4]
    with pytest.raises(ConfigError, match="part 2 of b00t where part 0"):
        replay((tmp_path / "log.2").read_bytes().splitlines(keepends=True))


def test_a_log_of_an_earlier_run_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log_at(path, boot="first").close()
    log_at(path, boot="second").close()
    boots = [lines_of(tmp_path / name)[0] for name in ("log.1", "log")]
    assert [header.boot for header in boots if isinstance(header, Header)] == ["first", "second"]


def test_a_place_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"event_log: .*: cannot be written: No such file"):
        log_at(tmp_path / "missing" / "log")


def test_a_disk_that_fails_ends_the_log_and_not_the_router(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = log_at(tmp_path / "log", part_bytes=1000)
    fill(log, 1)
    (tmp_path / "log").unlink()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    with caplog.at_level(logging.ERROR):
        fill(log, 2)
    assert "ends here: No such file or directory" in caplog.text
    log.note(9.0, TimerFired(), None)
    log.close()
    assert "No such file" in repr(log)


def test_a_disk_that_does_not_keep_up_ends_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventlog, "BUFFER_BYTES", 1000)
    log = log_at(tmp_path / "log")
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            log.note(1.0, TimerFired(), None)
    assert "the disk does not keep up" in caplog.text
    log.close()


# -- a live router -----------------------------------------------------------------------------------------

REQUESTS = 400
SECRET = "sk-secret-of-the-client"
TEXT = "words-of-the-prompt"


async def engine(connection: Connection) -> None:
    """Lists its model; answers in one of the ways engines have, by the number of the request."""
    while True:
        heard = await connection.hear()
        if heard.method == b"GET":
            await connection.send(sized(b'{"data": [{"id": "m"}]}'))
            continue
        way = len(connection.server.heard) % 9
        if way == 0:
            return  # closes without an answer
        if way == 1:
            connection.reset()
            return
        if way == 2:
            await connection.send(sized(b"{}", status=b"500 Oh"))
        elif way == 3:
            await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ncut")
            return
        elif way == 4:
            await connection.send(b"no HTTP\r\n\r\n")
            return
        else:
            await connection.send(sized(b'{"usage": {"prompt_tokens": 20, "completion_tokens": 9}}'))
            if way == 5:
                return  # the connection is kept in the router's pool for a moment after it has died


async def ask(port: int, number: int, rng: random.Random) -> int:
    """One request; every fifth client loses patience somewhere on the way."""
    client = await Client.connect(port)
    body = b'{"model": "%b", "prompt": "%b"}' % (b"m" if number % 20 != 1 else b"nobodys", TEXT.encode())
    try:
        await client.send(post(body, extra=b"Authorization: Bearer %b\r\n" % SECRET.encode()))
        if number % 5 == 0:
            async with asyncio.timeout(rng.random() * 0.02):
                return (await client.answer()).status
        return (await client.answer()).status
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return 0
    finally:
        client.abort()


@contextlib.asynccontextmanager
async def process(config: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A root process and its client port; killed if it is still there at the end."""
    command = (sys.executable, "-m", "dlbctl", "root", "--config", str(config))
    running = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    assert running.stdout is not None
    try:
        line = (await running.stdout.readline()).decode()
        assert "http://127.0.0.1:" in line, line or (await running.communicate())[1].decode()
        yield running, int(line.rpartition(":")[2])
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.communicate()


def configuration(folder: Path, ports: list[int]) -> Path:
    cells = [
        '[[cell]]\nname = "one/first"\n',
        *(f'[[cell.server]]\nurl = "http://127.0.0.1:{port}"\nendpoints = ["m"]\n' for port in ports[:2]),
        '[[cell]]\nname = "two"\n',
        f'[[cell.server]]\nurl = "http://127.0.0.1:{ports[2]}"\n',
        f'[[cell.server]]\nurl = "http://127.0.0.1:{ports[3]}"\nendpoints = ["m"]\n',
    ]
    root = (
        f'[root]\nlisten = "127.0.0.1:0"\nadmin = "unix:{folder}/admin.sock"\nevent_log = "{folder}/events"\n'
        "readiness_grace_s = 0.0\ndrain_s = 5.0\n"
    )
    path = folder / "root.toml"
    path.write_text(root + "".join(cells) + '[[endpoint]]\nname = "m"\n')
    return path


async def switch_policies(folder: Path) -> None:
    transport = httpx.AsyncHTTPTransport(uds=f"{folder}/admin.sock")
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
        for policy in ("discrete/rif", "power-of-d/gradient", "power-of-d/rif"):
            (await admin.put("/v1/policy/m", json={"policy": policy})).raise_for_status()
            (await admin.get("/v1/cells")).raise_for_status()  # to look must change nothing
        (await admin.delete("/v1/policy/m")).raise_for_status()


@on_loop
async def test_a_live_root_and_its_leaves_run_again_offline_do_the_same(tmp_path: Path) -> None:
    rng = random.Random(6)
    async with serving(engine) as one, serving(engine) as two, serving(engine) as three:
        with refusing_port() as dead:
            async with process(configuration(tmp_path, [one.port, two.port, three.port, dead])) as (running, port):
                await ready(port)
                for start in range(0, REQUESTS, 40):
                    statuses = await asyncio.gather(*(ask(port, start + n, rng) for n in range(40)))
                    if start % 80 == 0:
                        await switch_policies(tmp_path)
                    assert {200, 404} <= set(statuses)
                running.terminate()
                _, errors = await running.communicate()
                assert running.returncode == 0, errors.decode()
    assert b"Traceback" not in errors

    counts = {}
    for name in ("events", "events.one%2Ffirst", "events.two"):
        raw = (tmp_path / name).read_bytes()
        assert SECRET.encode() not in raw
        assert TEXT.encode() not in raw
        lines = raw.splitlines(keepends=True)
        comparison = replay(lines)
        assert comparison.same, comparison.mismatches[0]
        assert comparison.events == len(lines) - 1
        counts[name] = kinds(lines)
    seen = counts["events"]
    assert seen["Arrived"] >= REQUESTS
    for kind in ("AttemptFailed", "ClientGone", "Ended", "StateReported", "PolicySet"):
        assert seen[kind] > 3, counts
    assert counts["events.two"]["Probed"] > 0


async def ready(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.01)


def kinds(lines: list[bytes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in lines[1:]:
        entry = LINE.decode(line)
        assert isinstance(entry, Entry)
        name = type(entry.event).__name__
        found[name] = found.get(name, 0) + 1
        assert not isinstance(entry.action, TimerSet) or name == "TimerFired"
    return found
