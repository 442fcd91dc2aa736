"""What `--help` of the fleet commands teaches beyond the list of flags."""

FLEET = """
Examples:

  ganglion fleet plan --catalogue models.toml --gateway http://127.0.0.1:8080
"""

PLAN = """
Examples:

  ganglion fleet plan --catalogue models.toml --gateway http://127.0.0.1:8080
  ganglion fleet plan --catalogue models.toml --node a=http://10.0.0.1:8080 \\
      --node b=http://10.0.0.2:8080

Asks the nodes what they hold and what is free, loads nothing, and shows where
each model of the catalogue is or would go. The most urgent ones choose first.
A node's name, where none is given, is its host and port. The exit status is 1
when a model has no place.
"""
