"""Fetches the images that requests name by an address.

Law: nothing is fetched for a model that does not see, nor before it is known whether it does: a request must
not be able to make a server call somebody by asking for a model that is not here.
"""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, attachments_of, check_attachments
from ganglion.core.engine import ModelState, find_model
from ganglion.core.errors import InvalidValue, ModelLoading, UnsupportedParameter
from ganglion.core.fair_queue import FairQueue
from ganglion.core.request import Attachment, ChatPrompt, Message, Request
from ganglion.engines.fair_semaphore import FairSemaphore, PermitWaiter
from ganglion.server.images.outbound import Outbound
from ganglion.wire.attached_files import check_fetched

MAX_FETCHED_BYTES: Final = 2 * MAX_ATTACHMENT_BYTES
"""For one request."""
MAX_ADDRESSES: Final = 16
"""In one request: they are fetched one after another."""
AT_ONCE: Final = 8
AT_ONCE_EACH: Final = 4
"""Files that are fetched at the same time, and those of one tenant: what another fetches holds up nobody."""
_WAITING: Final = 128
_WAITING_EACH: Final = 32


class ImageFetcher:
    """Fetches what the attachments of requests name; tenants take turns."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        queue: FairQueue[PermitWaiter] = FairQueue(most=_WAITING, most_each=_WAITING_EACH, of="fetches")
        self._turns = FairSemaphore(AT_ONCE, AT_ONCE_EACH, queue)
        self._flights: dict[tuple[str, str], asyncio.Task[bytes]] = {}
        """What is being fetched, by tenant and address: the choices of one call ask for the same at once."""

    async def fetched(self, request: Request, models: tuple[ModelState, ...]) -> Request:
        """The request with the bytes of every image; raises InvalidValue where one cannot be had."""
        named = [each for each in attachments_of(request.prompt) if each.url]
        if not named:
            return request
        model = find_model(models, request.model)
        if model is not None and model.capabilities:
            check_attachments(request.prompt, request.model, model.capabilities)
        if self._outbound.rules.is_off:
            raise UnsupportedParameter(
                f"'{named[0].path}' is an address, and this server fetches no images.",
                param=named[0].path,
                hint="Send the image itself as base64; `server.images.fetch_hosts` allows hosts.",
            )
        if model is None or not model.capabilities:
            raise ModelLoading(
                f"The model {request.model!r} is not here, and images are fetched for a model that sees.",
                param="model",
                hint="Load it, or send the image itself as base64.",
            )
        urls = dict.fromkeys(each.url for each in named)
        if len(urls) > MAX_ADDRESSES:
            raise InvalidValue(
                f"The request names {len(urls)} images by an address, and at most {MAX_ADDRESSES} may be.",
                param=named[-1].path,
            )
        data = await self._fetch_each(named, request.tenant)
        return replace(request, prompt=_with_data(request.prompt, data))

    async def _fetch_each(self, named: list[Attachment], tenant: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        size_bytes = 0
        for each in named:
            if each.url in found:
                continue
            try:
                data = await self._flight(tenant, each.url)
            except InvalidValue as error:
                why = f"{error.message[:1].lower()}{error.message[1:]}"
                raise InvalidValue(
                    f"The image at '{each.path}' cannot be fetched: {why}", param=each.path
                ) from None
            check_fetched(data, each.path)
            found[each.url] = data
            size_bytes += len(data)
            if size_bytes > MAX_FETCHED_BYTES:
                raise InvalidValue(
                    f"The images that were fetched hold more than {MAX_FETCHED_BYTES} bytes.",
                    param=each.path,
                )
        return found

    async def _flight(self, tenant: str, url: str) -> bytes:
        """The bytes at an address, fetched once for all who ask meanwhile."""
        key = tenant, url
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(self._fetch(tenant, url), name="fetch an image")
            flight.add_done_callback(partial(self._landed, key))
        # Not cancelled with one of those who wait: it ends by itself, in time.
        return await asyncio.shield(flight)

    def _landed(self, key: tuple[str, str], flight: asyncio.Task[bytes]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # whoever waited for it may have left

    async def _fetch(self, tenant: str, url: str) -> bytes:
        with await self._turns.enter(tenant):
            return await self._outbound.fetch(url, max_bytes=MAX_ATTACHMENT_BYTES)


def _with_data(prompt: object, data: dict[str, bytes]) -> ChatPrompt:
    assert isinstance(prompt, ChatPrompt)
    return replace(prompt, messages=tuple(_filled(message, data) for message in prompt.messages))


def _filled(message: Message, data: dict[str, bytes]) -> Message:
    if not any(each.url for each in message.attachments):
        return message
    attachments = tuple(
        replace(each, data=data[each.url], url="") if each.url else each for each in message.attachments
    )
    return replace(message, attachments=attachments)
