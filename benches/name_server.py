"""A name server that knows no names and says so at once. Torch's server asks for the name of everybody who connects; with
this it is asked on this machine, so that torch is charged with asking, and with no network."""

import socket
import sys

ADDRESS = "127.0.0.153"
"""Port 53 of an address of this machine that nothing else is likely to use."""


def main() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((ADDRESS, 53))
        print("listening on", f"{ADDRESS}:53", flush=True)
        while True:
            query, client = server.recvfrom(512)
            if len(query) >= 12:
                # The question as it came, marked as answered: no such name.
                server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], client)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"name_server: {error}")
