"""The listening socket, bound before anything is loaded, and the reasons why a server does not start."""

import errno
import ipaddress
import socket

from ganglion.server.settings import ServerSettings

_LAST_PORT = 65535
_OTHER_PORT = "Choose another port with --port, or stop what listens there."
_NO_SHARING = "Leave --reuse-port out, and give each process a port of its own."
_OTHER_HOST = "--host takes an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them."


class StartRefused(Exception):
    """The server does not start; `hint` says what to change."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InsecureBind(StartRefused):
    """Other machines could reach this server without a key."""


class BindFailed(StartRefused):
    """The address cannot be listened on."""


class UnusableCertificate(StartRefused):
    """The TLS certificate or its key cannot be read or used."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"The TLS certificate cannot be used: {error}.", hint="Check --tls-cert and --tls-key."
        )


def is_loopback(host: str) -> bool:
    """Whether a host name or address always means this machine."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def check_bind(settings: ServerSettings) -> None:
    """Raise InsecureBind for a bind that others can reach while no key is set."""
    if settings.has_keys or is_loopback(settings.host):
        return
    raise InsecureBind(
        f"{settings.host} can be reached from other machines and no API key is set.",
        hint="Set a key with --api-key, or bind 127.0.0.1.",
    )


def bind(settings: ServerSettings) -> socket.socket:
    """A bound socket, not listening yet; raises BindFailed."""
    if settings.has_reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise _failure(settings, ValueError("this platform has no SO_REUSEPORT"), _NO_SHARING)
    if not 0 <= settings.port <= _LAST_PORT:  # the resolver would wrap it around and say nothing
        raise _failure(settings, ValueError(f"a port is a number up to {_LAST_PORT}"), _OTHER_PORT)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _failure(settings, error, _OTHER_HOST) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.has_reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        is_elsewhere = error.errno == errno.EADDRNOTAVAIL
        raise _failure(settings, error, _OTHER_HOST if is_elsewhere else _OTHER_PORT) from None
    listener.setblocking(False)
    return listener


def grpc_port_of(settings: ServerSettings, http_port: int) -> int:
    """The port that gRPC listens on; `http_port` is the one that HTTP got. 0 takes a free one."""
    if settings.grpc_port is not None:
        return settings.grpc_port
    return 0 if settings.port == 0 else http_port + 1


def url_of(listener: socket.socket, settings: ServerSettings) -> str:
    """The URL at which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    return f"{settings.scheme}://[{host}]:{port}" if ":" in host else f"{settings.scheme}://{host}:{port}"


def _failure(settings: ServerSettings, error: Exception, hint: str) -> BindFailed:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return BindFailed(
        f"Cannot listen on {settings.host}:{settings.port}: {reason}.",
        hint=hint,
    )
