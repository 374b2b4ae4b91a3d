"""A release on a loopback HTTP server, and a `dexcli` that stands in for the real one."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import sys
import tarfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAKE_DEXCLI = '''#!{python}
"""A dexcli whose behaviour is the JSON beside it."""
import json, os, signal, sys
from pathlib import Path
told = json.loads(Path({told!r}).read_text())
arguments = sys.argv[1:]
if arguments == ["version"]:
    print(f"dexcli v{{told['version']}} (commit abc, built today)")
    sys.exit(told.get("code", 0))
if arguments == ["dev", "--help"]:
    print("Flags:")
    for flag in told.get("flags", []):
        print(f"      {{flag}} string   what it does")
    sys.exit(0)
print("starting", flush=True)
Path(told["seen"]).write_text(json.dumps({{"arguments": arguments, "home": os.environ["HOME"]}}))
if told.get("fails"):
    print(told["fails"])
    sys.exit(3)
import grpc
from concurrent import futures
from dex.dexpb import dex_pb2
server = grpc.server(futures.ThreadPoolExecutor(2))
info = dex_pb2.ServerInfo(server_version="9.9.9",
    minimum_supported_protocol_version=told["protocol"][0],
    current_protocol_version=told["protocol"][1])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("dex.FlowService", {{
    "GetServerInfo": grpc.unary_unary_rpc_method_handler(
        lambda request, context: info,
        request_deserializer=lambda data: data,
        response_serializer=dex_pb2.ServerInfo.SerializeToString)}}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"\\nDex development environment is ready\\nDex Server:    127.0.0.1:{{port}}", flush=True)
signal.sigwait({{signal.SIGTERM, signal.SIGINT}})
server.stop(None)
'''


def write_dexcli(folder: Path, **told: object) -> Path:
    """Write a `dexcli` that behaves as told; it notes how it was started in `seen.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"version": "1.2.3", "protocol": [1, 3], "seen": str(folder / "seen.json"), **told}
    behaviour = folder / "behaviour.json"
    behaviour.write_text(json.dumps(facts))
    program = folder / "dexcli"
    program.write_text(FAKE_DEXCLI.format(python=sys.executable, told=str(behaviour)))
    program.chmod(0o755)
    return program


def archive_of(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """Return a gzipped tar archive with these files and symbolic links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), stat.S_IRUSR
            archive.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()


@dataclass
class ReleaseServer:
    """What the server serves, how it misbehaves, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    # How many answers break off in the middle, and whether parts of a file may be asked for.
    breaks: int = 0
    serves_ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])

    def serve(self, name: str, data: bytes) -> str:
        """Serve a file, list it in `checksums.txt`, and return its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        self.files[name] = data
        listed = self.files.get("checksums.txt", b"")
        self.files["checksums.txt"] = listed + f"{digest}  {name}\n".encode()
        return digest


@contextmanager
def release_server() -> Generator[ReleaseServer]:
    """Run the server for the time of the context."""
    state = ReleaseServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            asked = self.headers.get("Range")
            state.requests.append((name, asked))
            data = state.files.get(name)
            if data is None:
                self.send_error(404)
                return
            start = 0
            if asked and state.serves_ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(data):
                    self.send_error(416)
                    return
            body = data[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if state.breaks and name != "checksums.txt":
                state.breaks -= 1
                body = body[: max(1, len(body) // 2)]
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}/release/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
