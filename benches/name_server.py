"""A name server that replies to every query with "no such name".

Torch's server makes a reverse DNS lookup for every client that connects. With this name server on the same machine, the
benchmark includes the cost of the query, but no network latency.
"""

import socket
import sys

ADDRESS = "127.0.0.153"
"""An address of this machine whose port 53 no other program is likely to use."""


def main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((ADDRESS, 53))
        print("listening on", f"{ADDRESS}:53", flush=True)
        while True:
            query, client = server.recvfrom(512)
            if len(query) >= 12:
                # The reply is the query with the flags of a reply and the code NXDOMAIN.
                server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], client)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"name_server: {error}")
