"""The process over the workers of a gateway: takes the port, starts them, starts them anew, ends them.

Laws: it starts no thread and no event loop and never imports gRPC, so that a fork of it is safe at any time.
It holds the port, so a connection that no worker has accepted outlives every one of them. It alone hears
signals: workers are told what to do through their channels, and leave by themselves when it is gone.
"""

import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from ganglion.core.errors import GanglionError, InvalidValue
from ganglion.server.gateway.settings import GatewaySettings, Reload
from ganglion.server.gateway.unix_socket import socket_folder
from ganglion.server.gateway.worker import LEADER, Worker
from ganglion.server.gateway.worker_channel import DRAIN, RELOAD, STOP, Ready, Unable, hear, say, unable
from ganglion.server.life.app_server import BACKLOG
from ganglion.server.life.bind import StartRefused, bind
from ganglion.server.life.signals import check_keys_remain, log_refused_reload
from ganglion.store.opening import MEMORY

logger = logging.getLogger("ganglion.gateway")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
STEADY_S: Final = 10.0
"""A worker that lived so long did not end because of how it was started: the pauses begin anew."""
BETWEEN_STARTS_S: Final = 1.1
"""Of one place, at least: a leader counts epochs from the second in which it starts."""
MARGIN_S: Final = 5.0
"""Beyond the time to drain, before a worker that does not leave is killed."""

OnListening = Callable[[str, str | None], None]
Work = Callable[[GatewaySettings, Worker], None]
"""Serves as one of the workers until its channel says otherwise."""


@dataclass(slots=True)
class _Place:
    """One worker's place, whoever fills it."""

    number: int
    pid: int = 0
    """0 while nobody does."""
    channel: socket.socket | None = None
    is_ready: bool = False
    started_s: float = 0.0
    pause_s: float = 0.0
    due_s: float = 0.0


def supervise(
    settings: GatewaySettings,
    work: Work,
    on_listening: OnListening | None = None,
    reload: Reload | None = None,
) -> None:
    """Serve with several workers until a signal ends it; raises StartRefused, InvalidValue."""
    if settings.storage is None or settings.storage.place == MEMORY:
        raise InvalidValue(
            f"{settings.workers} workers share keys, limits and responses through the database, and there is"
            " none that outlives a process.",
            param="gateway.workers",
            hint="Give a file or a PostgreSQL URL with --store, or leave --workers out.",
        )
    with (
        bind(settings.server) as listener,
        socket_folder() as folder,
        selectors.DefaultSelector() as selector,
        _bell() as bell,
    ):
        listener.listen(BACKLOG)
        selector.register(bell, selectors.EVENT_READ)
        gc.collect()
        gc.freeze()  # what workers share with this process they need not copy when they collect garbage
        _Supervisor(
            settings,
            work,
            on_listening,
            reload,
            listener=listener,
            folder=folder,
            selector=selector,
            bell=bell,
        ).run()


class _Supervisor:
    def __init__(
        self,
        settings: GatewaySettings,
        work: Work,
        on_listening: OnListening | None,
        reload: Reload | None,
        *,
        listener: socket.socket,
        folder: Path,
        selector: selectors.BaseSelector,
        bell: socket.socket,
    ) -> None:
        self._settings = settings
        self._work = work
        self._on_listening = on_listening
        self._reload = reload
        self._listener = listener
        self._folder = folder
        self._selector = selector
        self._bell = bell
        self._places = [_Place(number) for number in range(settings.workers)]
        self._lead: Ready | None = None
        """What the first leader said of where it listens."""
        self._is_welcome_said = False
        self._signals = 0
        self._killed_s: float | None = None
        """When whoever is still there then is killed; None while nobody is to leave."""
        self._refusal: Exception | None = None

    def run(self) -> None:
        """Until everybody has left."""
        while self._killed_s is None or any(place.pid for place in self._places):
            self._start_due()
            for key, _ in self._selector.select(self._timeout_s()):
                if key.fileobj is self._bell:
                    self._answer_bell()
                else:
                    self._hear(key.data)
            self._bury()
            if self._killed_s is not None and time.monotonic() >= self._killed_s:
                self._kill()
        if self._refusal is not None:
            raise self._refusal

    def _timeout_s(self) -> float | None:
        moments = [] if self._killed_s is None else [self._killed_s]
        if self._killed_s is None:
            moments += [place.due_s for place in self._places if self._is_to_start(place)]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _is_to_start(self, place: _Place) -> bool:
        """The leader first: it prepares the database, and says where gRPC is."""
        return not place.pid and (place.number == LEADER or self._lead is not None)

    def _start_due(self) -> None:
        for place in self._places:
            if self._killed_s is None and self._is_to_start(place) and time.monotonic() >= place.due_s:
                self._start(place)

    def _start(self, place: _Place) -> None:
        ours, theirs = socket.socketpair()
        # Until it has let go of what is ours, a signal must not be taken for one to this process.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        pid = os.fork()
        if not pid:
            self._become(place, ours, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()
        place.pid, place.channel, place.is_ready = pid, ours, False
        place.started_s = time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, place)

    def _become(self, place: _Place, ours: socket.socket, theirs: socket.socket) -> NoReturn:
        """In the new process: be that worker, and never come back."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            # A copy of another channel's end would keep that worker from learning that we are gone.
            for end in (ours, self._bell, *(each.channel for each in self._places if each.channel)):
                end.close()
            self._selector.close()
            _name_records(place.number)
            worker = Worker(place.number, len(self._places), self._folder, self._listener, theirs)
            try:
                self._work(self._settings_of(place), worker)
                status = 0
            except (StartRefused, GanglionError) as error:
                say(theirs, unable(error))
            except Exception:
                logger.exception("a worker failed")
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)  # what this process's callers would clean up is not its own

    def _settings_of(self, place: _Place) -> GatewaySettings:
        """With the ports that were taken: whoever leads next takes the same."""
        port = self._listener.getsockname()[1]
        server = replace(self._settings.server, port=port)
        if self._lead is not None and self._lead.rpc is not None:
            server = replace(server, grpc_port=int(self._lead.rpc.rpartition(":")[2]))
        elif self._settings.server.port == 0 and server.grpc_port is None:
            server = replace(server, grpc_port=0)
        return replace(self._settings, server=server)

    def _answer_bell(self) -> None:
        with suppress(BlockingIOError):
            for number in self._bell.recv(4096):
                if number == signal.SIGHUP:
                    self._read_again()
                elif number != signal.SIGCHLD:
                    self._signals += 1
                    is_hasty = self._signals > 1
                    self._leave(0.0 if is_hasty else self._settings.server.drain_timeout_s, is_hasty=is_hasty)

    def _read_again(self) -> None:
        """For workers that start from now on; those that run are told to read it, too."""
        if self._reload is None:
            return
        try:
            fresh = self._settings.renewed(self._reload())
            check_keys_remain(is_keyed=self._settings.has_static_keys, would_be_keyed=fresh.has_static_keys)
        except (GanglionError, StartRefused) as error:
            log_refused_reload(error)
        else:
            self._settings = fresh
            self._tell(RELOAD)

    def _leave(self, drain_s: float, *, is_hasty: bool) -> None:
        self._killed_s = time.monotonic() + drain_s + MARGIN_S
        self._tell(STOP if is_hasty else DRAIN)

    def _tell(self, word: bytes) -> None:
        for place in self._places:
            if place.channel is not None:
                with suppress(OSError):
                    place.channel.send(word)

    def _hear(self, place: _Place) -> None:
        channel = place.channel
        assert channel is not None
        word = hear(channel)
        if isinstance(word, Ready):
            place.is_ready = True
            if place.number == LEADER and self._lead is None:
                self._lead = word
            self._welcome()
            return
        self._selector.unregister(channel)
        if isinstance(word, Unable):
            if self._is_welcome_said:
                logger.error("worker %d cannot start: %s", place.number, word.message)
            else:
                self._give_up(word.error())

    def _welcome(self) -> None:
        if self._is_welcome_said or not all(place.is_ready for place in self._places):
            return
        self._is_welcome_said = True
        assert self._lead is not None
        if self._on_listening is not None:
            self._on_listening(self._lead.url, self._lead.rpc)

    def _give_up(self, error: Exception) -> None:
        if self._refusal is None:
            self._refusal = error
            self._leave(0.0, is_hasty=True)

    def _bury(self) -> None:
        for place in self._places:
            if not place.pid:
                continue
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                self._mourn(place, os.waitstatus_to_exitcode(status))

    def _mourn(self, place: _Place, code: int) -> None:
        channel = place.channel
        if channel is not None:
            if channel in self._selector.get_map():
                self._hear(place)  # what it said in the moment in which it ended
            if channel in self._selector.get_map():
                self._selector.unregister(channel)
            channel.close()
        pid, place.pid, place.channel = place.pid, 0, None
        if self._killed_s is not None:
            return
        how = f"signal {-code}" if code < 0 else f"status {code}"
        if not self._is_welcome_said:
            self._give_up(
                StartRefused(
                    f"Worker {place.number} ended with {how} before it listened.", hint="The log says more."
                )
            )
            return
        now_s = time.monotonic()
        is_steady = now_s - place.started_s >= STEADY_S
        place.pause_s = (
            FIRST_PAUSE_S if is_steady else min(max(FIRST_PAUSE_S, 2 * place.pause_s), LONGEST_PAUSE_S)
        )
        place.due_s = max(now_s + place.pause_s, place.started_s + BETWEEN_STARTS_S)
        logger.warning(
            "worker %d (process %d) ended with %s; another one starts in %.1f s",
            place.number,
            pid,
            how,
            place.due_s - now_s,
        )

    def _kill(self) -> None:
        for place in self._places:
            if place.pid:
                logger.error("worker %d (process %d) does not leave, and is killed", place.number, place.pid)
                with suppress(ProcessLookupError):
                    os.kill(place.pid, signal.SIGKILL)
        self._killed_s = time.monotonic() + MARGIN_S


_HEARD: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD))


@contextmanager
def _bell() -> Generator[socket.socket, None, None]:
    """While inside, a socket from which the numbers of signals are read."""
    ours, rung = socket.socketpair()
    ours.setblocking(False)
    rung.setblocking(False)
    with ours, rung:
        before = {number: signal.signal(number, lambda *_: None) for number in _HEARD}
        signal.set_wakeup_fd(rung.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)


def _name_records(place: int) -> None:
    """Have every log record of this process say which worker it is."""
    made = logging.getLogRecordFactory()

    def named(*args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = made(*args, **kwargs)
        record.worker = place
        return record

    logging.setLogRecordFactory(named)
