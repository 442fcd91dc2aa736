"""Sessions that leave memory and come back: their bytes, their KV, and which model may continue them."""

from collections.abc import Callable

from ganglion.core.engine import ModelState, SessionEngine
from ganglion.core.errors import GanglionError, InvalidValue, ModelMismatch
from ganglion.core.request import Steering
from ganglion.sessions.holding import Held
from ganglion.sessions.saved import SavedSession, encode, fingerprint, header_of
from ganglion.sessions.session import Session

Models = Callable[[], tuple[ModelState, ...]]


class Archive:
    """Turns sessions into bytes, and finds the model for those that come back."""

    def __init__(self, engine: SessionEngine, models: Models) -> None:
        self._engine = engine
        self._models = models

    async def kv_of(self, held: Held, session: Session) -> bytes:
        """The KV that is at hand; images have none that could be moved."""
        if session.images or not session.length:
            return b""
        return await self._engine.save_kv(held.model, held.salt, session.tokens())

    async def give_kv(self, held: Held, session: Session, kv: bytes) -> int:
        """Put KV back; returns of how many tokens. Where it cannot be, it is computed again."""
        if not kv:
            return 0
        try:
            return await self._engine.load_kv(held.model, held.salt, session.tokens(), kv)
        except GanglionError:
            return 0

    def encoded(self, held: Held, session: Session, kv: bytes, *, is_ours: bool) -> bytes:
        """A session as bytes; only on our own disk do they say whose it is."""
        state = state_of(self._models(), held.model)
        header = header_of(
            session,
            model=held.model,
            fingerprint=fingerprint(held.model, None if state is None else state.facts),
            steering=held.steering,
            kv=kv,
            owner=held.tenant if is_ours else "",
            session_id=held.id if is_ours else "",
            ttl_s=held.ttl_s if is_ours else 0.0,
        )
        return encode(header, kv)

    def same_model(self, saved: SavedSession) -> ModelState:
        """The model here that a session was saved from, by its name if it has that; raises ModelMismatch."""
        for state in sorted(self._models(), key=lambda state: state.id != saved.model):
            if fingerprint(state.id, state.facts) == saved.fingerprint:
                return state
        raise ModelMismatch(
            f"The session belongs to the model {saved.model[:200]!r}, and no model here is the same.",
            param="data",
            hint="Restore it where that model is served.",
        )


def state_of(models: tuple[ModelState, ...], name: str) -> ModelState | None:
    """The model that a name means, by id or by alias in any case."""
    folded = name.casefold()
    by_id = (state for state in models if state.id == name)
    by_alias = (state for state in models if folded in map(str.casefold, state.aliases))
    return next(by_id, None) or next(by_alias, None)


def check_steering(steering: Steering, state: ModelState | None) -> None:
    """Whether a model can be steered so; raises InvalidValue."""
    known = () if state is None or state.readout is None else state.readout.concepts
    for steer in steering:
        if steer.concept not in known:
            raise InvalidValue(
                f"The model has no concept {steer.concept[:64]!r} to steer by.",
                param="steering",
                hint=f"There are: {', '.join(known)}." if known else "Serve it with --concepts PACK.",
            )


def check_vocabulary(session: Session, size: int) -> None:
    """Whether a session that came from outside has only tokens that exist; raises InvalidValue."""
    if any(token >= size for token in session.tokens()):
        raise InvalidValue(f"The session has tokens outside the vocabulary of {size}.", param="data")
