"""Images of the client: from a path, bytes or a data URI, and refused before anything is sent."""

from base64 import b64encode
from pathlib import Path

import pytest
from both import KINDS, Kind, client_of, done

from ganglion.client import Image
from ganglion.client.fake import FakeNode
from ganglion.core.attachments import MAX_ATTACHMENT_BYTES
from ganglion.core.errors import InvalidValue
from ganglion.wire.salience import salience_pb2 as pb

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
FILES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0" + bytes(40),
    "image/webp": b"RIFF\x24\x00\x00\x00WEBPVP8 " + bytes(40),
    "image/gif": b"GIF89a" + bytes(40),
    "image/bmp": b"BM" + bytes(12) + (40).to_bytes(4, "little") + bytes(40),
}


@pytest.mark.parametrize("mime", FILES)
def test_an_image_is_what_its_bytes_say_however_it_is_given(mime: str, tmp_path: Path) -> None:
    data = FILES[mime]
    path = tmp_path / "a picture.dat"
    path.write_bytes(data)
    uri = f"data:application/octet-stream;base64,{b64encode(data).decode()}"
    for source in (data, path, str(path), uri, uri.replace("data", "DATA", 1)):
        assert Image.of(source) == Image(data, mime)
    assert Image.file(path) == Image(data, mime)


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"%PDF-1.7",
        b"RIFF\x24\x00\x00\x00WAVEfmt ",
        "data:image/png;base64,%%%",
        "data:image/png,plain",
        "data:image/png;base64",
        f"data:text/plain;base64,{b64encode(b'hello').decode()}",
    ],
)
def test_what_is_no_image_is_refused_with_a_hint(source: str | bytes) -> None:
    with pytest.raises(InvalidValue) as refused:
        Image.of(source)
    assert refused.value.param == "source"


def test_a_file_that_is_no_image_or_too_large_is_refused(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    with pytest.raises(InvalidValue, match="no image") as refused:
        Image.of(notes)
    assert refused.value.hint
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        file.truncate(MAX_ATTACHMENT_BYTES + 1)
    with pytest.raises(InvalidValue, match="larger"):
        Image.of(huge)
    with pytest.raises(FileNotFoundError):
        Image.of(tmp_path / "nothing.png")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conversation_is_run_with_images_of_all_sources(kind: Kind, tmp_path: Path) -> None:
    node = FakeNode()
    path = tmp_path / "cat.gif"
    path.write_bytes(FILES["image/gif"])
    uri = f"data:image/png;base64,{b64encode(PNG).decode()}"
    session = client_of(node, kind).session("fake")
    chunks = ["What are these?", Image.of(path), Image.of(uri), Image.of(FILES["image/webp"])]
    await done(session.run(chunks, max_tokens=1).result())
    sent = [call.request for call in node.calls if isinstance(call.request, pb.AppendImageRequest)]
    assert [each.mime for each in sent] == ["image/gif", "image/png", "image/webp"]
    with pytest.raises(InvalidValue) as refused:
        await done(session.run(["What are these?", PNG], max_tokens=1).result())
    assert "Image.of" in (refused.value.hint or "")
