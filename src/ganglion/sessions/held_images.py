"""The files of the images that sessions in memory hold, and how much they take. Pure.

Law: a tenant's file is here once, however many of its sessions and forks have the image, and goes with the
last of them. Tenants share nothing: what one holds cannot be found out by another.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ganglion.core.errors import TooManySessions
from ganglion.core.request import ImageBlock
from ganglion.sessions.settings import SessionSettings


@dataclass(slots=True)
class _TenantImages:
    """The files of one tenant by digest, in how many sessions each is, and what they take together."""

    files: dict[str, bytes] = field(default_factory=dict)
    sessions: Counter[str] = field(default_factory=Counter)
    size_bytes: int = 0


class HeldImages:
    """The image files of all sessions, within the operator's limits."""

    def __init__(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._tenants: dict[str, _TenantImages] = {}
        self.size_bytes = 0
        """Of all tenants."""

    def shared(self, tenant: str, images: Iterable[ImageBlock]) -> tuple[ImageBlock, ...]:
        """The images with the bytes that are held already, where they are."""
        held = self._tenants.get(tenant)
        if held is None:
            return tuple(images)
        return tuple(replace(image, data=held.files.get(image.digest, image.data)) for image in images)

    def check(self, tenant: str, images: Iterable[ImageBlock]) -> None:
        """Check that a session of a tenant may have these images; raises TooManySessions."""
        files = files_of(images)
        held = self._tenants.get(tenant, _TenantImages())
        more = sum(len(data) for digest, data in files.items() if digest not in held.files)
        settings = self._settings
        for size_bytes, most, who in (
            (sum(map(len, files.values())), settings.max_session_image_bytes, "One session"),
            (held.size_bytes + more, settings.max_key_image_bytes, "The sessions of one key"),
            (self.size_bytes + more, settings.max_image_mb << 20, "All sessions together"),
        ):
            if size_bytes > most:
                raise TooManySessions(
                    f"{who} may hold {most >> 20} MiB of images.",
                    param="data",
                    hint="Truncate, close or suspend sessions with images, or send smaller ones.",
                    extras={"limit": most},
                )

    def replace(
        self, tenant: str, before: tuple[ImageBlock, ...], after: tuple[ImageBlock, ...]
    ) -> tuple[ImageBlock, ...]:
        """Note that a session has other images now; returns them."""
        if before is not after:
            self._add(tenant, files_of(after))
            self._remove(tenant, files_of(before))
        return after

    def _add(self, tenant: str, files: dict[str, bytes]) -> None:
        if not files:
            return
        held = self._tenants.setdefault(tenant, _TenantImages())
        for digest, data in files.items():
            held.sessions[digest] += 1
            if held.sessions[digest] == 1:
                held.files[digest] = data
                held.size_bytes += len(data)
                self.size_bytes += len(data)

    def _remove(self, tenant: str, files: dict[str, bytes]) -> None:
        if not files:
            return
        held = self._tenants[tenant]
        for digest in files:
            held.sessions[digest] -= 1
            if not held.sessions[digest]:
                del held.sessions[digest]
                size_bytes = len(held.files.pop(digest))
                held.size_bytes -= size_bytes
                self.size_bytes -= size_bytes
        if not held.files:
            del self._tenants[tenant]


def files_of(images: Iterable[ImageBlock]) -> dict[str, bytes]:
    """The files of some images, each once, in the order of their first place."""
    return {image.digest: image.data for image in images}
