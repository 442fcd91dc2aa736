"""Which model a name means, how its file gets here, and which models are held."""
