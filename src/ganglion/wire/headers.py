"""The names of HTTP headers that more than one side writes or reads.

Those named x-ganglion-* pass between a gateway and its nodes only; from anybody else they are stripped.
"""

from typing import Final

TENANT: Final = b"x-ganglion-tenant"
KEY: Final = b"x-ganglion-key"
PRIORITY: Final = b"x-ganglion-priority"
EPOCH: Final = b"x-ganglion-epoch"
"""Of the lease under which the gateway sends work; a node whose lease is another one refuses."""
AFFINITY: Final = b"x-ganglion-affinity"
"""Names the conversation; the node reports it among the conversations that its prefix cache knows."""
USAGE: Final = b"x-ganglion-usage"
"""With the value 1 a stream's last event is a comment of this name, a space and the usage as JSON."""
ADMISSION: Final = b"x-ganglion-place"
"""Names what a gateway's proxy reserved for a request, to the control app in the same process."""
REQUEST_ID: Final = b"x-request-id"
INTERNAL_PREFIX: Final = b"x-ganglion-"
INCLUDE_THINKING: Final = b"x-include-thinking"
"""With the value 1 the markers around a model's thinking stay in the text."""
API_KEY: Final = b"x-api-key"
RETRY_AFTER: Final = "retry-after"
