"""The client's blocking shells, generated from `_async`; edit those."""
