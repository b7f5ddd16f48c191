"""A gRPC call over a bare HTTP/2 connection, for what a proper client does not do.

It can leave a reply unread as long as it likes, which holds a call in flight at a known point; and it sends whatever
deadline it is told to. HTTP/2: RFC 9113; its headers: RFC 7541, sent as literals and never compressed.
"""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
WINDOW_BYTES = 65_535  # that a sender may have unread, at first
STREAM = 1


class RawCall:
    """One unary call on one connection."""

    def __init__(self, address, method, request, headers=()):
        host, port = address.rsplit(':', 1)
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._unread = b''
        self.message = b''  # the reply's bytes so far, with the 5 that stand before a gRPC message
        self.ended = False
        self.trailers = b''
        self._socket.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')
        self._send(SETTINGS, 0, 0, b'')
        fields = [(':method', 'POST'), (':scheme', 'http'), (':path', f'/{method}'),
                  (':authority', address), ('te', 'trailers'), ('content-type', 'application/grpc'),
                  *headers]
        self._send(HEADERS, END_HEADERS, STREAM, b''.join(
            b'\x00' + _string(name) + _string(value) for name, value in fields))
        self._send(DATA, END_STREAM, STREAM, b'\x00' + struct.pack('>I', len(request)) + request)

    def close(self):
        self._socket.close()

    def read_until(self, size_bytes):
        """Reads until that much of the reply is there, and grants the server no more than it has."""
        while len(self.message) < size_bytes and not self.ended:
            self._read_frame()

    def finish(self):
        """Lets the rest come: the reply's message, or None without one, and the gRPC status."""
        while not self.ended:
            for stream in (0, STREAM):
                self._send(WINDOW_UPDATE, 0, stream, struct.pack('>I', 1 << 20))
            self._read_frame()
        # The first status on a connection is a literal, since nothing is in the table of headers yet.
        at = self.trailers.index(b'grpc-status') + len(b'grpc-status')
        length = self.trailers[at]
        status = int(self.trailers[at + 1:at + 1 + length])
        return self.message[5:] if self.message else None, status

    def _send(self, kind, flags, stream, payload):
        self._socket.sendall(struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) +
                             struct.pack('>I', stream) + payload)

    def _read(self, size_bytes):
        while len(self._unread) < size_bytes:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionError('the server closed the connection in the middle of a call')
            self._unread += received
        taken, self._unread = self._unread[:size_bytes], self._unread[size_bytes:]
        return taken

    def _read_frame(self):
        head = self._read(9)
        payload = self._read(int.from_bytes(head[:3], 'big'))
        kind, flags = head[3], head[4]
        if kind == SETTINGS and not flags & ACK:
            self._send(SETTINGS, ACK, 0, b'')
        elif kind == PING and not flags & ACK:
            self._send(PING, ACK, 0, payload)
        elif kind == DATA:
            self.message += payload
        elif kind == HEADERS and flags & END_STREAM:
            self.trailers = payload
        elif kind == RST_STREAM and not self.ended:
            raise ConnectionError(f'the server reset the call, error {int.from_bytes(payload, "big")}')
        self.ended = self.ended or (kind in (DATA, HEADERS) and bool(flags & END_STREAM))


def _string(text):
    data = text.encode()
    assert len(data) < 127, 'longer ones need more than one byte of length'
    return bytes([len(data)]) + data
