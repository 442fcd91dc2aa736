"""`ganglion keys`: which subcommand is meant."""

from cyclopts import App

from ganglion.cli import keys_manual as manual

app = App(name="keys", help="Make, list and revoke the gateway's keys.", help_epilogue=manual.KEYS)
app.command(
    "ganglion.cli.keys_create:create", help="Make a key and print it, once.", help_epilogue=manual.CREATE
)
app.command("ganglion.cli.keys_list:list_keys", name="list", help="Show the keys.", help_epilogue=manual.LIST)
app.command("ganglion.cli.keys_revoke:revoke", help="End a key.", help_epilogue=manual.REVOKE)
