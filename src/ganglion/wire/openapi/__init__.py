"""What a server tells of itself: its routes and their shapes, wire by wire."""

from ganglion.wire.openapi.document import GATEWAY, NODE, OPERATIONS, Surface, document, encode
from ganglion.wire.operation import Json, Operation

__all__ = ["GATEWAY", "NODE", "OPERATIONS", "Json", "Operation", "Surface", "document", "encode"]
