"""A worker process as the server sees it: frames, supervision, isolation of suspects."""
