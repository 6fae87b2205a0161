"""The bodies of answers are framed as h11 frames them."""

from __future__ import annotations

import h11
import pytest

from draftwood.serve.run import ChunkWriter

ANSWERS = {
    "chunked": ("1.1", []),
    "length": ("1.1", [("content-length", "12")]),
    "older client": ("1.0", []),
}


def sent(connection: h11.Connection, version: str, headers: list[tuple[str, str]]) -> list[bytes]:
    """The bytes of two answers, one after the other where the connection stays open."""
    parts: list[bytes] = []
    for _ in range(1 if version == "1.0" else 2):
        connection.receive_data(f"GET / HTTP/{version}\r\nhost: here\r\n\r\n".encode())
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        parts.append(connection.send(h11.Response(status_code=200, headers=headers)))
        parts += [connection.send(h11.Data(data=data)) for data in (b"a token", b"", b" more")]
        parts.append(connection.send(h11.EndOfMessage()))
        if version == "1.1":
            connection.start_next_cycle()
    return parts


@pytest.mark.parametrize("answer", ANSWERS)
def test_bodies_are_framed_as_by_h11(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sent(h11.Connection(h11.SERVER), *ANSWERS[answer])
    passed: list[type] = []
    send = h11.Connection.send_with_data_passthrough

    def counted(connection: h11.Connection, event: h11.Event) -> list[bytes] | None:
        passed.append(type(event))
        return send(connection, event)

    monkeypatch.setattr(h11.Connection, "send_with_data_passthrough", counted)
    assert sent(ChunkWriter(h11.SERVER), *ANSWERS[answer]) == expected
    assert passed.count(h11.Data) == {"chunked": 2, "length": 6, "older client": 3}[answer]  # of chunks: the empty ones
