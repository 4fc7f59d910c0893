"""A real HTTP server on 127.0.0.1 that answers as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class Server:
    """Answers each POST with what `answer(request, number)` gives: status, body (JSON unless text) and headers."""

    def __init__(self, answer: Callable[[Any, int], Answer]) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.under_way = self.most_under_way = 0
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    server.under_way += 1
                    server.most_under_way = max(server.most_under_way, server.under_way)
                    number = len(server.requests)
                    server.requests.append(request)
                    server.headers.append(dict(self.headers))
                    server.times.append(time.monotonic())
                status, body, *more = answer(request, number)
                with lock:
                    server.under_way -= 1
                if status == 0:  # hang up without a word
                    self.close_connection = True
                    return
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    for name, value in (more[0] if more else {}).items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/score"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Any, int], Answer]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[Any, int], Answer]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
