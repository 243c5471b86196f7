"""A real HTTP server on this machine that can do what bad servers and bad lines do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    """What is served and how; `asked` has the path and the Range of every request."""

    files: dict[str, bytes]
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    wrong_range: bool = False
    hold: threading.Event | None = None  # the client waits in the middle of an answer
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append((self.path, self.headers["Range"]))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            begin = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) if self.headers["Range"] else 0
            if not site.ranges or not begin:
                begin = 0
                self.send_response(200)
            elif begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            else:
                begin = 0 if site.wrong_range else begin
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            body = content[begin:]
            if site.cuts:
                body = body[: site.cuts.pop(0)]
            if site.hold is not None:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                site.hold.wait(20)
                body = body[len(body) // 2 :]
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # a client that was killed

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield site
        finally:
            if site.hold is not None:
                site.hold.set()
            server.shutdown()
            thread.join()
