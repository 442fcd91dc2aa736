"""What a node tells of itself: its routes and their shapes, wire by wire."""

from ganglion.wire.openapi.document import OPERATIONS, document, encode
from ganglion.wire.openapi.operation import Json, Operation

__all__ = ["OPERATIONS", "Json", "Operation", "document", "encode"]
