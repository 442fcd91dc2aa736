"""Names that people and clients give to models, and which of them may become a path.

Law: what came over a wire becomes a `ModelRef` or a 404 before anything else looks at it. Only what an
operator wrote, on the command line or in a config file, may be a path.
"""

import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ganglion.core.errors import ModelNotFound
from ganglion.registry.files.parts import part_of

NAME_LIMIT: Final = 200
"""Characters of the longest name: beyond every hub id in use, short enough to be repeated in an error."""

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
# Characters that a file system, a URL or a shell reads as structure.
_STRUCTURE: Final = frozenset("/\\.:%~")
# They look like slashes, and NFKC does not say so.
_SLASH_LIKE: Final = frozenset("\u2044\u2215\u2216\u29f5\u29f8\u29f9")
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_WEIGHTS: Final = ".safetensors"
_HUB_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB_ID: Final = re.compile(rf"(?P<repo>{_HUB_PART}/{_HUB_PART})(?::(?P<quant>[A-Za-z0-9_-]{{1,32}}))?")


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A name that is safe to look up, log and send back: no path, nothing unseen, at most 200 characters."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "ModelRef":
        """The name, trimmed and in NFC; raises ModelNotFound, which says no more than of any unknown name."""
        name = text.strip()
        if len(name) <= NAME_LIMIT:
            name = unicodedata.normalize("NFC", name)
            if _is_name(name):
                return cls(name)
        raise ModelNotFound(shortened(text))

    @property
    def base(self) -> str:
        """The name without its tag."""
        return self._split()[0]

    @property
    def tag(self) -> str | None:
        """What follows the colon of `name:tag`: a quantisation, or a tag in Ollama's sense."""
        return self._split()[1]

    def _split(self) -> tuple[str, str | None]:
        base, colon, tag = self.text.rpartition(":")
        return (base, tag) if colon and "/" not in tag else (self.text, None)


@dataclass(frozen=True, slots=True)
class HubId:
    """`org/repo[:quant]`, spelt as it was written: the hub's addresses know upper and lower case."""

    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubId | None":
        """None when the text has another shape."""
        found = _HUB_ID.fullmatch(text)
        if found is None or "--" in found["repo"] or ".." in found["repo"]:
            return None
        quant: str | None = found["quant"]
        return cls(found["repo"], quant.upper() if quant else None)

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def fold(text: str) -> str:
    """The form in which names are compared in any case."""
    if text.isascii():
        return text.strip().lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text.strip()).casefold())


def shortened(text: str) -> str:
    """A name as an error repeats it."""
    return text if len(text) <= NAME_LIMIT else f"{text[:NAME_LIMIT]}…"


def is_path(text: str) -> bool:
    """Whether an operator's word is written as a file; `org/repo` is not, `./org/repo` is."""
    if (
        text.casefold().endswith((".gguf", _WEIGHTS))
        or text.startswith((".", "~", "/", "\\"))
        or _DRIVE.match(text)
    ):
        return True
    separators = {"/", os.sep, os.altsep or os.sep}
    return any(separator in text for separator in separators) and HubId.parse(text) is None


def operator_path(text: str) -> Path | None:
    """The file, or the folder of a checkpoint, that an operator's word means; None when it is a name."""
    try:
        if "\0" in text:
            return None
        path = Path(text)
        if not (is_path(text) or path.is_file() or (path / "config.json").is_file()):
            return None
        return real_file(path.expanduser())
    except (OSError, RuntimeError):  # longer than a path can be, or the home of nobody
        return None


def linked_name(text: str) -> str | None:
    """What an operator called a file by linking to it; None where the argument is no link to another name."""
    path = Path(text).expanduser()
    if not path.is_symlink() or path.suffix.casefold() != ".gguf" or real_file(path).name == path.name:
        return None
    part = part_of(path.name)
    return path.stem if part is None else part.stem


def real_file(path: Path) -> Path:
    """The path under which a file is compared with others: absolute, links followed.

    A link whose target is not called *.gguf stays as it is: the Hugging Face cache links names to blobs, and
    a blob's own path no longer says which part of a split model it is. A checkpoint is its folder, also where
    the weights in it are named.
    """
    try:
        if path.suffix.casefold() == _WEIGHTS:
            return path.parent.resolve()
        target = path.resolve()
        is_own = target.suffix.casefold() == ".gguf" or target.is_dir()
        return target if is_own else path.parent.resolve() / path.name
    except (OSError, RuntimeError):  # links in a circle
        return path.absolute()


def _is_name(name: str) -> bool:
    if not name or len(name) > NAME_LIMIT or not all(map(_is_plain, name)):
        return False
    if name.startswith("~") or _DRIVE.match(name):
        return False
    # Also catches an absolute path, `//`, `..`, and the dots and blanks that Windows drops at the end.
    return all(part.strip(" .") for part in re.split("[/:]", name))


def _is_plain(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and character not in "\\%"
    if unicodedata.category(character) in _UNSEEN or character in _SLASH_LIKE:
        return False
    return _STRUCTURE.isdisjoint(unicodedata.normalize("NFKC", character))
