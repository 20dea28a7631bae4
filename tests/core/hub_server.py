"""A small Hugging Face hub on localhost: the real client talks to it, nothing else is faked."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """The server's state.

    Attributes:
        url: Its address.
        repos: Repository id to the folder it serves.
        gated: Ids that refuse access.
        fetched: Every file that was asked for, in order.
        requests: Number of requests of any kind.
    """

    url: str = ""
    repos: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    fetched: list[str] = field(default_factory=list)
    requests: int = 0


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            hub.requests += 1
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            if api:
                parts = parts[2:]
            repo = "/".join(parts[:2])
            verb, revision, rest = ([*parts[2:], "", ""])[0], ([*parts[3:], ""])[0], parts[4:]
            if repo in hub.gated:
                return self._send(403, b"", {"X-Error-Code": "GatedRepo"}, body)
            if repo not in hub.repos:
                return self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
            if revision not in ("main", COMMIT):
                return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, body)
            folder = hub.repos[repo]
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            if api and verb == "revision":
                siblings = [
                    {"rfilename": str(p.relative_to(folder)), "size": p.stat().st_size}
                    for p in files
                ]
                return self._json({"id": repo, "sha": COMMIT, "siblings": siblings}, body)
            if api:
                entries = [
                    {
                        "type": "file",
                        "path": str(p.relative_to(folder)),
                        "size": p.stat().st_size,
                        "oid": _oid(p),
                    }
                    for p in files
                ]
                return self._json(entries, body)
            file = folder.joinpath(*rest)
            if not file.is_file():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            if body:
                hub.fetched.append("/".join(rest))
            headers = {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": COMMIT}
            return self._send(200, file.read_bytes(), headers, body)

        def _json(self, data: Any, body: bool) -> None:
            self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"}, body)

        def _send(self, code: int, data: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
