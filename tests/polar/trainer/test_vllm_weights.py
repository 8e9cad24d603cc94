"""What is refused before vLLM's file is replaced, and a reload's requests; tests/vllm loads weights into a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from polar.trainer.vllm_weights import WEIGHTS, PushError, reload, served_folder, tensor_names
from topics.types.errors import InputError

HEADER = {"__metadata__": {"format": "pt"}, "head": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    header = json.dumps(HEADER).encode()
    (tmp_path / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return tmp_path


class Server(ThreadingHTTPServer):
    """A stand-in for vLLM's development routes: remembers the requests, and fails at one route."""

    failing = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, object]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body))
        self.send_response(500 if self.path == self.server.failing else 200)
        self.end_headers()
        self.wfile.write(b"no room")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_folder_of_several_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder: has no model\.safetensors: serve a model of one file"):
        served_folder(tmp_path, [])


def test_other_tensors_than_the_served_ones_are_refused_and_the_file_stays(folder: Path) -> None:
    before = (folder / WEIGHTS).read_bytes()
    assert tensor_names(folder / WEIGHTS) == {"head"}
    with pytest.raises(InputError, match=r"tensors: the server's file has other tensors .*'embeddings', 'head'"):
        served_folder(folder, [])({"embeddings": None}, 1)
    assert (folder / WEIGHTS).read_bytes() == before


def test_a_reload_pauses_reads_forgets_names_the_version_and_resumes(server: Server) -> None:
    reload(server.url, 7)
    assert server.requests == [
        ("/pause?mode=wait", {}),
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/reset_prefix_cache", {}),
        ("/update_weight_version", {"new_version": "7"}),
        ("/resume", {}),
    ]


def test_a_server_that_fails_is_resumed_and_its_answer_is_reported(server: Server) -> None:
    server.failing = "/collective_rpc"
    with pytest.raises(PushError, match="/collective_rpc answers 500: no room"):
        reload(server.url, 7)
    assert [path for path, _ in server.requests] == ["/pause?mode=wait", "/collective_rpc", "/resume"]


def test_a_server_behind_a_path_is_reloaded_there(server: Server) -> None:
    reload(f"{server.url}/engine-1/", 7)
    assert [path for path, _ in server.requests][1] == "/engine-1/collective_rpc"


def test_a_server_that_is_away_is_named() -> None:
    with pytest.raises(PushError, match=r"http://127\.0\.0\.1:9/pause\?mode=wait doesn't answer"):
        reload("http://127.0.0.1:9", 7)
