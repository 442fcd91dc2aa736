"""What `--help` of the commands about keys teaches beyond the list of flags."""

KEYS = """
Examples:

  ganglion keys create shop --requests-per-minute 60 --budget 20
  ganglion keys list
  ganglion keys revoke shop

The commands work on the gateway's database (--store, GANGLION_STORE__URL),
whether a gateway runs or not. One that runs sees a change within a second.
Once there is a key, nobody comes in without one.
"""

CREATE = """
Examples:

  ganglion keys create shop
      a key without limits, printed on stdout, once and never again
  ganglion keys create trial --model tiny --tokens-per-minute 20000 --expires 2w
      one model, so many tokens a minute, for two weeks
  ganglion keys create team --requests-per-minute 60 --budget 50 --period day
      a request a second, and 50 units at the models' prices each day
  ganglion keys create box-2 --role node
      for a node that joins the fleet

A request reserves what it can take: a token for each byte of it, some for the
model's template, and max_tokens. Left out, max_tokens is 4096 or what the cap
allows. So 1000 tokens a minute do for short questions one by one, 20000 for a
few at once; what was not used comes back.

Keys of one tenant see each other's stored responses and conversations; left
out, the tenant is called like the key. Minutes, days and months are those of
UTC. The database keeps a digest of the key, from which nobody gets it back.
"""

LIST = """
Examples:

  ganglion keys list
  ganglion keys list --json | jq -r '.[] | select(.state == "expired") | .id'

Limits that a key does not have are written as -. Revoked keys are left out
unless --all is given.
"""

REVOKE = """
Examples:

  ganglion keys revoke shop
  ganglion keys revoke key_5f1c09a2b7

A gateway that runs refuses the key within a second; answers that run go on.
"""

USAGE = """
Examples:

  ganglion usage
      what each key used in the last seven days
  ganglion usage --since 30d --by tenant --by model
  ganglion usage --since 2027-01-01 --by day --csv > january.csv

Counts come from what the models themselves reported, streams included. Cost
is in the unit in which the catalogue's prices are written. Hours and days are
those of UTC; a gateway writes what it counted every half second.
"""
