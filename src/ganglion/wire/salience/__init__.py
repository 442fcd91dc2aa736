"""Token sessions over gRPC: the messages of package `salience.v1`; `make proto` writes their code."""
