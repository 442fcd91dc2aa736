"""The wires that a server of another kind may be declared to speak.

Apart from the table of dialects: every command reads the configuration, and none should import that for it.
"""

from typing import Literal

ForeignWire = Literal["chat", "completions", "embeddings", "messages", "responses", "rerank"]
