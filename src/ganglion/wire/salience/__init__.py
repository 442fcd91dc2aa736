"""Token sessions over gRPC: the messages of `salience.v1` (from `make proto`) and the metadata of errors."""
