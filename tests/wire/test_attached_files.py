"""Pictures and sounds in the bodies of every wire: what is read, where it stands, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ganglion.core.attachments import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS
from ganglion.core.errors import GanglionError, InvalidRequest
from ganglion.core.request import ChatPrompt, Message
from ganglion.wire import chat, messages, ollama, responses
from ganglion.wire.answer_format import ParseContext
from ganglion.wire.seal import HmacSeal
from support.pictures import BMP, GIF, JPEG, KINDS, MP3, WAV, WEBP, base64_of, data_uri, png

RED, BLUE = png(), png(8, 8, (0, 0, 255))
CONTEXT = ParseContext("x", 0.0, seal=HmacSeal(b"k" * 32))
Part = dict[str, object]


def _ids(prefix: str) -> str:
    return f"{prefix}_1"


@dataclass(frozen=True)
class Wire:
    """One wire's way to say a user's message."""

    show: Callable[[str, str], Part]
    """A part from base64 and the type that is declared of it."""
    body: Callable[[list[Part]], dict[str, object]]
    read: Callable[[bytes], tuple[Message, ...]]
    field: str
    """Where the bytes of a message's second part stand."""
    part: str
    text: str = "text"


def _chat_messages(body: bytes) -> tuple[Message, ...]:
    return _messages_of(chat.parse(body, CONTEXT).request.prompt)


def _messages_messages(body: bytes) -> tuple[Message, ...]:
    return _messages_of(messages.parse(body, CONTEXT).request.prompt)


def _responses_messages(body: bytes) -> tuple[Message, ...]:
    context = responses.ResponsesParseContext(id="resp_1", created_s=0, ids=_ids)
    return _messages_of(responses.parse(body, context).request.prompt)


def _ollama_messages(body: bytes) -> tuple[Message, ...]:
    return _messages_of(ollama.parse_chat(body, CONTEXT).request.prompt)


def _messages_of(prompt: object) -> tuple[Message, ...]:
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def _said_by_user(parts: list[Part]) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": parts}]}


WIRES = {
    "chat": Wire(
        lambda data, kind: {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}},
        _said_by_user,
        _chat_messages,
        "messages[0].content[1].image_url.url",
        "messages[0].content[1]",
    ),
    "messages": Wire(
        lambda data, kind: {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}},
        lambda parts: _said_by_user(parts) | {"max_tokens": 9},
        _messages_messages,
        "messages[0].content[1].source.data",
        "messages[0].content[1]",
    ),
    "responses": Wire(
        lambda data, kind: {"type": "input_image", "image_url": f"data:{kind};base64,{data}"},
        lambda parts: {"model": "m", "input": [{"role": "user", "content": parts}]},
        _responses_messages,
        "input[0].content[1].image_url",
        "input[0].content[1]",
        "input_text",
    ),
}
every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


def read(wire: Wire, *parts: Part) -> Message:
    (message,) = wire.read(json.dumps(wire.body(list(parts))).encode())
    return message


def refusal(wire: Wire, *parts: Part) -> GanglionError:
    with pytest.raises(InvalidRequest) as caught:
        read(wire, *parts)
    return caught.value


def says(wire: Wire, text: str) -> Part:
    return {"type": wire.text, "text": text}


@every_wire
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_picture_is_read(wire: Wire, kind: str) -> None:
    data = KINDS[kind]
    message = read(wire, says(wire, "see"), wire.show(base64_of(data), kind))
    assert [(each.data, each.at, each.kind, each.path) for each in message.attachments] == [
        (data, 3, "image", wire.part)
    ]


@every_wire
def test_several_stand_where_they_were_sent_and_the_text_is_joined_as_ever(wire: Wire) -> None:
    red, blue = wire.show(base64_of(RED), "image/png"), wire.show(base64_of(BLUE), "image/png")
    message = read(wire, red, says(wire, "first "), red, blue, says(wire, "second"), blue)
    assert message.content == "first second"
    assert [(each.data, each.at) for each in message.attachments] == [
        (RED, 0),
        (RED, 6),
        (BLUE, 6),
        (BLUE, 12),
    ]


@every_wire
@pytest.mark.parametrize(
    "data",
    [
        "",
        "!!!!",
        "aGk",
        "aGk=\n",
        " aGk=",
        "aGk=aGk=",
        "aGk",
        "-_-_",
        "aGk=" + "=" * 8,
        base64_of(RED)[:-1],
        "é",
    ],
)
def test_what_is_not_base64_is_refused_by_its_field(wire: Wire, data: str) -> None:
    error = refusal(wire, says(wire, "see"), wire.show(data, "image/png"))
    assert (error.code, error.param) == ("invalid_value", wire.field)


@every_wire
@pytest.mark.parametrize(
    "data", [b"hi", b"%PDF-1.7", b"<svg/>", b"BM and so on, a text", WAV, b"\x89PNG", bytes(64)]
)
def test_what_is_no_picture_by_its_bytes_is_refused(wire: Wire, data: bytes) -> None:
    error = refusal(wire, says(wire, "see"), wire.show(base64_of(data), "image/png"))
    assert (error.code, error.param) == ("invalid_value", wire.field)
    assert "no image" in error.message


@every_wire
def test_a_declared_type_must_agree_with_the_bytes(wire: Wire) -> None:
    for declared, data in (("image/jpg", JPEG), ("IMAGE/PNG", RED), ("image/webp", WEBP)):
        assert read(wire, wire.show(base64_of(data), declared)).attachments[0].data == data
    for declared in ("image/png", "text/plain", "image/svg+xml"):
        error = refusal(wire, says(wire, "see"), wire.show(base64_of(GIF), declared))
        assert (error.code, error.param) == ("invalid_value", wire.field)
        assert "image/gif" in error.message


@every_wire
def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(wire: Wire) -> None:
    largest = BMP + bytes(MAX_ATTACHMENT_BYTES - len(BMP))
    assert len(read(wire, wire.show(base64_of(largest), "image/bmp")).attachments[0].data) == len(largest)
    for longer in (1, 64):
        error = refusal(wire, says(wire, "see"), wire.show(base64_of(largest + bytes(longer)), "image/bmp"))
        assert (error.code, error.param) == ("invalid_value", wire.field)
        assert str(MAX_ATTACHMENT_BYTES) in error.message


@every_wire
def test_one_picture_too_many_is_refused_by_its_place(wire: Wire) -> None:
    red = wire.show(base64_of(RED), "image/png")
    assert len(read(wire, *[red] * MAX_ATTACHMENTS).attachments) == MAX_ATTACHMENTS
    error = refusal(wire, *[red] * (MAX_ATTACHMENTS + 1))
    assert error.param is not None
    assert error.param.endswith(f"content[{MAX_ATTACHMENTS}]")


@pytest.mark.parametrize("url", ["https://host.example/a.png", "http://host.example/a.png"])
def test_an_address_is_kept_for_whoever_fetches(url: str) -> None:
    for wire, part in (
        (WIRES["chat"], {"type": "image_url", "image_url": {"url": url}}),
        (WIRES["messages"], {"type": "image", "source": {"type": "url", "url": url}}),
        (WIRES["responses"], {"type": "input_image", "image_url": url}),
    ):
        (attachment,) = read(wire, part).attachments
        assert (attachment.data, attachment.url) == (b"", url)


@pytest.mark.parametrize(
    "url",
    ["", "cat.png", "ftp://host/a.png", "file:///etc/passwd", "data:image/png,raw", "data:", "javascript:1"],
)
def test_an_address_that_is_none_is_refused_by_its_field(url: str) -> None:
    error = refusal(
        WIRES["chat"], {"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}
    )
    assert (error.code, error.param) == ("invalid_value", WIRES["chat"].field)


def test_detail_is_one_of_its_words() -> None:
    wire = WIRES["chat"]
    for detail in ("auto", "low", "high"):
        part: Part = {"type": "image_url", "image_url": {"url": data_uri(RED), "detail": detail}}
        assert read(wire, part).attachments[0].detail == detail
    error = refusal(wire, {"type": "image_url", "image_url": {"url": data_uri(RED), "detail": "finest"}})
    assert error.param == "messages[0].content[0].image_url.detail"


def test_sounds_are_read_on_chat() -> None:
    wire = WIRES["chat"]
    for file_format, data in (("wav", WAV), ("mp3", MP3)):
        part: Part = {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": file_format}}
        (sound,) = read(wire, part).attachments
        assert (sound.kind, sound.data) == ("audio", data)
    wrong: Part = {"type": "input_audio", "input_audio": {"data": base64_of(MP3), "format": "wav"}}
    assert refusal(wire, wrong).param == "messages[0].content[0].input_audio.data"


def test_the_answers_of_tools_hold_pictures() -> None:
    call = {"id": "toolu_1", "type": "tool_use", "name": "look", "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "seen: "}, WIRES["messages"].show(base64_of(RED), "image/png")],
    }
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "well?"}]},
        ],
    }
    *_, tool, asked = WIRES["messages"].read(json.dumps(body).encode())
    assert (tool.role, tool.content, [(each.data, each.at) for each in tool.attachments]) == (
        "tool",
        "seen: ",
        [(RED, 6)],
    )
    assert (asked.content, asked.attachments) == ("well?", ())
    output = [{"type": "input_text", "text": "seen: "}, WIRES["responses"].show(base64_of(RED), "image/png")]
    items = [
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    *_, tool = WIRES["responses"].read(json.dumps({"model": "m", "input": items}).encode())
    assert [(each.data, each.at, each.path) for each in tool.attachments] == [(RED, 6, "input[1].output[1]")]


def test_a_failed_tool_keeps_its_pictures_behind_the_word_for_it() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": [{"id": "t", "type": "tool_use", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "is_error": True,
                        "content": [WIRES["messages"].show(base64_of(RED), "image/png")],
                    }
                ],
            },
        ],
    }
    *_, tool = WIRES["messages"].read(json.dumps(body).encode())
    assert (tool.content, tool.attachments[0].at) == ("Error: ", 7)


def test_turns_of_one_role_are_one_turn_and_their_pictures_move_with_them() -> None:
    red = WIRES["messages"].show(base64_of(RED), "image/png")
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, red]},
            {"role": "user", "content": [red, {"type": "text", "text": "two"}]},
        ],
    }
    (turn,) = WIRES["messages"].read(json.dumps(body).encode())
    assert turn.content == "one\n\ntwo"
    assert [each.at for each in turn.attachments] == [3, 5]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_and_tools_show_pictures(role: str) -> None:
    red = WIRES["chat"].show(base64_of(RED), "image/png")
    with pytest.raises(InvalidRequest) as caught:
        WIRES["chat"].read(
            json.dumps({"model": "m", "messages": [{"role": role, "content": [red]}]}).encode()
        )
    assert caught.value.param == "messages[0].content[0].type"
    shown = WIRES["responses"].show(base64_of(RED), "image/png")
    with pytest.raises(InvalidRequest) as caught:
        WIRES["responses"].read(
            json.dumps({"model": "m", "input": [{"role": role, "content": [shown]}]}).encode()
        )
    assert caught.value.param == "input[0].content[0]"


def test_files_that_nobody_keeps_are_refused_by_name() -> None:
    error = refusal(WIRES["responses"], {"type": "input_image", "file_id": "file-1"})
    assert (error.code, error.param) == ("unsupported_parameter", "input[0].content[0].file_id")
    error = refusal(WIRES["messages"], {"type": "image", "source": {"type": "file", "file_id": "f"}})
    assert (error.code, error.param) == ("unsupported_parameter", "messages[0].content[0].source.file_id")
    error = refusal(WIRES["responses"], {"type": "input_image"})
    assert (error.code, error.param) == ("missing_required_parameter", "input[0].content[0].image_url")


@pytest.mark.parametrize(
    ("text", "content", "places"),
    [
        ("What is this?", "What is this?", [(RED, 0), (BLUE, 0)]),
        ("From [img] to [img] it goes", "From  to  it goes", [(RED, 5), (BLUE, 9)]),
        ("Only [img] here", "Only  here", [(BLUE, 0), (RED, 5)]),
        ("[img][img][img]", "[img]", [(RED, 0), (BLUE, 0)]),
    ],
)
def test_images_of_ollama_stand_before_the_text_or_at_its_marks(
    text: str, content: str, places: list[tuple[bytes, int]]
) -> None:
    sent = {"role": "user", "content": text, "images": [base64_of(RED), base64_of(BLUE)]}
    (message,) = _ollama_messages(json.dumps({"model": "m", "messages": [sent]}).encode())
    assert message.content == content
    assert [(each.data, each.at) for each in message.attachments] == places
    body = json.dumps({"model": "m", "prompt": text, "images": sent["images"]}).encode()
    (message,) = _messages_of(ollama.parse_generate(body, CONTEXT).request.prompt)
    assert (message.content, [(each.data, each.at) for each in message.attachments]) == (content, places)


def test_images_of_ollama_are_refused_by_their_number() -> None:
    sent = {"role": "user", "content": "?", "images": [base64_of(RED), base64_of(b"no picture")]}
    with pytest.raises(InvalidRequest) as caught:
        _ollama_messages(json.dumps({"model": "m", "messages": [sent]}).encode())
    assert caught.value.param == "messages[0].images[1]"
    with pytest.raises(InvalidRequest) as caught:
        ollama.parse_generate(
            json.dumps({"model": "m", "prompt": "?", "raw": True, "images": [base64_of(RED)]}).encode(),
            CONTEXT,
        )
    assert caught.value.param == "images"


def test_a_document_of_blocks_keeps_its_pictures() -> None:
    blocks = [{"type": "text", "text": "page"}, WIRES["messages"].show(base64_of(RED), "image/png")]
    document = {"type": "document", "title": "Report", "source": {"type": "content", "content": blocks}}
    message = read(WIRES["messages"], says(WIRES["messages"], "Read: "), document)
    assert message.content == "Read: Report\npage"
    assert [each.at for each in message.attachments] == [len(message.content)]
