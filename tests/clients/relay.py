"""A relay between a client and a server that loses connections when it is told to."""

import socket
import threading


class Relay:
    """Passes bytes on, in both directions, until it is told to lose what the server says next."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._server = (host, int(port))
        self._losing = threading.Event()
        self.lost = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next(self):
        """Cuts the connection on which the server next answers a request, and keeps the answer."""
        self._losing.set()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(self._server) as server:
            asking = threading.Thread(target=self._pass_on, args=(client, server, False))
            asking.start()
            self._pass_on(server, client, True)
            asking.join()

    def _pass_on(self, source, sink, answers):
        try:
            while data := source.recv(65536):
                if answers and self._losing.is_set() and has_headers(data):
                    self._losing.clear()
                    self.lost += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def has_headers(data):
    """Whether HTTP/2 frames hold the headers of a reply; what the server sends arrives in whole
    frames where little is sent."""
    while len(data) >= 9:
        length, kind = int.from_bytes(data[:3], "big"), data[3]
        if kind == 1:
            return True
        data = data[9 + length :]
    return False
