"""A server that gives recorded answers and counts what it is asked. Run as a process of its own: its time is not ours.

`python -m bench.growing.answering FOLDER` serves the files of a folder; the file `paths.json` says which is which.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]


class Answers:
    """A running server as the benchmark sees it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def asked(self) -> int:
        """Requests since the last time this was asked."""
        with urlopen(self.base_url.removesuffix("/api") + "/asked") as answer:
            return int(answer.read())


@contextmanager
def answering(folder: Path) -> Iterator[Answers]:
    """Serves the answers that `stacks` wrote into a folder."""
    command = [sys.executable, "-m", "bench.growing.answering", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield Answers(process.stdout.readline().strip())
        finally:
            process.terminate()
            process.wait()


def _serve(folder: Path) -> None:
    names: Mapping[str, str] = json.loads((folder / "paths.json").read_text())
    bodies = {f"/api{path}": (folder / name).read_bytes() for path, name in names.items()}
    counted = [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = bodies.get(path)
            if path == "/asked":
                body, counted[0] = str(counted[0]).encode(), -1
            counted[0] += 1
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body or b"{}")))
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/api", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
