"""`ganglion keys` and `ganglion usage`: the gateway's keys and what they used."""
