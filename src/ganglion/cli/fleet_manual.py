"""What `--help` of the fleet commands teaches beyond the list of flags."""

FLEET = """
Examples:

  ganglion fleet status --watch      nodes, models and load, every second
  ganglion fleet plan --catalogue models.toml   what would go where
  ganglion fleet drain a             no new work for node a
  ganglion fleet move qwen3-4b b     a model to node b, away from the others

These talk to a gateway (--gateway, or GANGLION_GATEWAY), whose keys may have
to be shown (--api-key, or GANGLION_API_KEY).
"""

STATUS = """
Examples:

  ganglion fleet status
  ganglion fleet status --watch
  ganglion fleet status --json | jq -r '.nodes[] | select(.healthy | not).name'

The status of the command is 0 while every model can be served, also with a
node missing (impaired); 1 when something cannot be served (degraded), or when
the gateway does not answer; 2 for a mistake in the command.

Models that are not loaded are counted, and of a node's others the busiest are
shown; --json lists all. With --watch, --json prints one document a line.
Ctrl-C ends it.
"""

DRAIN = """
Examples:

  ganglion fleet drain a
  ganglion fleet drain a --undo
  ganglion fleet drain a --force

What only this node holds is first loaded on another one. Where nobody else can
have it, nothing is changed and the exit status is 1, unless --force is given:
requests for it are refused then, until somebody has it again.

What runs on the node goes on to its end; `ganglion fleet status --watch` shows
when nothing does any more, and the node can be stopped. Nothing is unloaded.
"""

MOVE = """
Examples:

  ganglion fleet move qwen3-4b b
  ganglion fleet move qwen3-4b b --keep

The model is loaded on the node first and unloaded elsewhere afterwards, when
its requests there have ended: at no moment is it nowhere. It is downloaded to
the node where need be, so this may take long. Ctrl-C stops the waiting, not
the move.
"""

PLAN = """
Examples:

  ganglion fleet plan --catalogue models.toml
  ganglion fleet plan --catalogue models.toml --node a=http://10.0.0.1:8080 \\
      --node b=http://10.0.0.2:8080

Asks a gateway (--gateway, or GANGLION_GATEWAY) or the nodes what they hold and
what is free, loads nothing, and shows where each model of the catalogue is or
would go. The most urgent ones choose first.
A node's name, where none is given, is its host and port. The exit status is 1
when a model has no place.
"""
