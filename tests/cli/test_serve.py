"""`octavo serve`: what it hands to the server, and a real one that starts, answers and stops."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Octavo


@pytest.fixture
def server(model: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "octavo.cli", "serve", model, "--port", "0", "-ctv", "q4_0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = process.stderr.readline()
        assert "q8_0:q4_0 pages on http://127.0.0.1:" in ready, ready
        yield process, ready.split()[-1]
        process.kill()


def test_a_server_answers_and_stops_on_ctrl_c(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    body = json.dumps({"prompt": "Hello", "max_tokens": 3, "model": "tiny-chat"}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert json.load(reply)["usage"]["completion_tokens"] <= 3
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr is not None and process.stderr.read() == "stopped\n"


def test_a_second_ctrl_c_cuts_streams_off_without_a_word(
    server: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server
    asked = {"prompt": "Hello", "max_tokens": 200, "n": 8, "model": "tiny-chat", "stream": True}
    body = json.dumps(asked | {"ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.readline().startswith(b"data: {")
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert process.stderr is not None and process.stderr.read() == "stopped\n"


def test_a_taken_port_is_told(octavo: Octavo, model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = octavo("serve", model, "--port", str(taken.getsockname()[1]))
    assert refused.status == 1 and "another program does" in refused.err and "Traceback" not in refused.err


def test_a_key_that_no_client_can_send_is_told(octavo: Octavo) -> None:
    refused = octavo("serve", "no-such-model", "--port", "0", "--api-key", "schlüssel")
    assert refused.status == 2 and "character 5 of 9 of the API key is not printable ASCII" in refused.err
    assert "schl" not in refused.err


def test_a_wrong_port_is_told(octavo: Octavo, model: str) -> None:
    assert octavo("serve", model, "--port", "70000").status == 2
