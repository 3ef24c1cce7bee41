"""The least of a redis client: commands as byte strings over a socket, pipelined."""

import socket
import time


class Redis:
    """One connection over a unix socket. `call` returns bytes, int, list or None; raises OSError on an error reply."""

    def __init__(self, path, timeout_s=600, connect_s=15):
        deadline = time.monotonic() + connect_s
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(str(path))
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.socket.settimeout(timeout_s)
        self.reader = self.socket.makefile("rb")

    def send(self, *commands):
        """Sends commands, each a tuple of str or bytes, without reading the replies."""
        out = bytearray()
        for command in commands:
            out += b"*%d\r\n" % len(command)
            for word in command:
                word = word.encode() if isinstance(word, str) else word
                out += b"$%d\r\n%b\r\n" % (len(word), word)
        self.socket.sendall(out)

    def reply(self):
        line = self.reader.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise OSError(f"redis: {rest.decode(errors='replace')}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest

    def call(self, *words):
        self.send(words)
        return self.reply()

    def pipeline(self, commands):
        """All commands in one write; their replies."""
        commands = list(commands)
        self.send(*commands)
        return [self.reply() for _ in commands]
