"""The limits that nobody sets, as a table of docs/configuration.md: read off the code that holds them."""

from ganglion.engines import rendering
from ganglion.engines.limits import WorkerLimits
from ganglion.engines.llama import guide, texts, vector_turns
from ganglion.gateway import body_turns
from ganglion.registry.residency import LOOKUPS, LOOKUPS_OF_TENANT, WAITING_LIMIT
from ganglion.server.connection import HEAD_S, MAX_HEAD_BYTES
from ganglion.server.rpc import message_room, message_sizes, uploads
from ganglion.server.settings import ServerSettings

HEAD = "| what | limit |\n|---|---|\n"


def table() -> str:
    """The whole table."""
    return HEAD + "".join(f"| {what} | {limit} |\n" for what, limit in rows())


def rows() -> tuple[tuple[str, str], ...]:
    """What is bounded, and by what."""
    server, worker, template = ServerSettings(), WorkerLimits(), rendering.LIMITS
    sizes = message_sizes
    return (
        ("head of a request", f"{_bytes(MAX_HEAD_BYTES)}, {HEAD_S:g} s"),
        ("body", f"`server.max_body_bytes`, {server.body_s:g} s"),
        (
            f"bodies above {_bytes(body_turns.SMALL_BYTES)} that are still coming",
            f"{_bytes(body_turns.ROOM_BYTES)}, half of it of one key; others wait {body_turns.WAIT_S:g} s, "
            "then `overloaded`",
        ),
        ("connections", f"{server.max_connections:,}"),
        ("requests inside the door", f"{server.max_in_flight:,}, then `overloaded`"),
        ("requests that wait for one model to load", f"{WAITING_LIMIT:,}, then `model_loading`"),
        (
            "hub names that a key has looked up at once, and all keys together",
            f"{LOOKUPS_OF_TENANT} and {LOOKUPS}, then `overloaded`",
        ),
        (
            "a message over gRPC",
            f"{_bytes(max(sizes.SIZES.values()))} of tokens, text, image or saved session, "
            f"{_bytes(sizes.SMALL)} of anything else, {sizes.MAX_FIELDS:,} fields, {server.body_s:g} s",
        ),
        (
            "messages over gRPC that are still coming",
            f"{message_room.PROMPT}, {message_room.PROMPT_EACH} of one key; those that take longer than "
            f"{message_room.MOMENT_S:g} s: {message_room.SLOW}, {message_room.SLOW_EACH} of one key",
        ),
        (
            "a saved session that comes in",
            f"{_bytes(uploads.MAX_SAVED_BYTES)}, and {_bytes(uploads.MAX_COMING_BYTES)} of all at a time",
        ),
        ("a stream whose client does not read", f"cut after {server.stalled_reader_s:g} s"),
        ("an idle connection", f"closed after {server.idle_connection_s} s"),
        ("silence on a stream", f"a comment after {server.keep_alive_s:g} s"),
        (
            "rendering of a chat template",
            f"{template.budget_s:g} s of processor time, {_bytes(template.memory_bytes)} of memory, "
            f"{_bytes(template.max_bytes)} of text; {rendering.CHILDREN} at once, "
            f"{rendering.CHILDREN - 1} of one key; {template.wall_s:g} s of waiting, then `overloaded`",
        ),
        (
            "texts that wait to be tokenized",
            f"{_bytes(texts.MOST_BYTES_EACH)} of one key in each of three sizes "
            f"({_bytes(texts.LANES[0])}, {_bytes(texts.LANES[1])}, larger)",
        ),
        ("control tokens in one text", f"{texts.MARKERS:,}"),
        ("formats that wait to be compiled", f"{guide.WAITING_EACH} of one key"),
        ("tokens that wait to be made vectors of", f"{vector_turns.MOST_TOKENS_EACH:,} of one key"),
        ("loading of a model", f"{worker.load_s:g} s"),
        (
            "wait of a new request for a crashed model's restart",
            f"{worker.recovery_wait_s:g} s, then `model_recovering`",
        ),
    )


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count // size} {unit}"
    return f"{count} bytes"
