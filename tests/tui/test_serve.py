"""`dartree-tui --serve`, over real HTTP and a real websocket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp

from tests.tui.driving import fake_trace

PATIENCE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def page(session: aiohttp.ClientSession, url: str, server: subprocess.Popen[bytes]) -> str:
    """The page, as soon as the server answers."""
    while True:
        assert server.poll() is None, "the server ended"
        try:
            async with session.get(url) as response:
                assert response.status == 200
                return await response.text()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.05)


async def test_a_browser_gets_the_page_and_the_first_paint(tmp_path: Path) -> None:
    trace = fake_trace(tmp_path / "run.jsonl")
    port = free_port()
    command = [sys.executable, "-m", "dartree_tui", "--serve", "--host", "127.0.0.1"]
    server = subprocess.Popen(
        [*command, "--port", str(port), "--replay", str(trace)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
    )
    try:
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            html = await page(session, f"http://127.0.0.1:{port}/", server)
            assert f"ws://127.0.0.1:{port}/ws" in html
            assert "dartree" in html
            async with session.ws_connect(f"http://127.0.0.1:{port}/ws?width=100&height=30") as ws:
                painted = b""
                while b"REPLAY" not in painted:
                    message = await ws.receive()
                    assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
                    if message.type is aiohttp.WSMsgType.BINARY:
                        painted += message.data
            assert b"fake-135M" in painted
    finally:
        server.terminate()
        server.wait(20)
