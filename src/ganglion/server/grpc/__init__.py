"""Token sessions over gRPC: the door of `salience.v1`, with health and reflection beside it."""
