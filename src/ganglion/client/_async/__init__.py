"""The client's shells for an event loop; `_sync` is generated from these files."""
