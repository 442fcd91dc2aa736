"""Values that tests keep."""

from ganglion.store.response_store import NewItem, Status, StoredConversation, StoredEvent, StoredResponse


def response(
    response_id: str = "resp_1",
    *,
    tenant: str = "ann",
    status: Status = "completed",
    previous_id: str | None = None,
    conversation_id: str | None = None,
    body: bytes = b'{"output":[]}',
    created_s: float = 1_000.5,
) -> StoredResponse:
    return StoredResponse(
        tenant=tenant,
        id=response_id,
        created_s=created_s,
        status=status,
        model="echo",
        body=body,
        input_items=b"[]",
        previous_id=previous_id,
        conversation_id=conversation_id,
    )


def conversation(
    conversation_id: str = "conv_1", *, tenant: str = "ann", metadata: bytes = b"{}"
) -> StoredConversation:
    return StoredConversation(tenant, conversation_id, 1_000.5, metadata)


def items(*names: str) -> list[NewItem]:
    return [NewItem(name, name.encode(errors="replace")) for name in names]


def events(*numbers: int) -> list[StoredEvent]:
    return [StoredEvent(number, b"\x00\xff%d" % number) for number in numbers]
