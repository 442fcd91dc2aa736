"""`ganglion fleet`: see and steer the nodes behind a gateway."""
